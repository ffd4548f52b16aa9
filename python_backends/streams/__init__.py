"""Client streams: what was accepted, delivered and sent. Pure: the clock and the sender come from outside."""
