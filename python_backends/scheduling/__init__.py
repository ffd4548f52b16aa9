"""Scheduling decides and never touches a tensor: which sequence gets a slot, which blocks, which tokens of the next step."""
