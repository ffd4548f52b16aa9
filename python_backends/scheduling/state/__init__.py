"""Which sequence has which slot and which blocks. Written by the
slot scheduler and the plan of a step alone.
"""
