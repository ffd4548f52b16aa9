"""Metrics, trace spans, counts of restarts, files about the instances, and the board: the state of each
process.

No failure here ends a stream.
"""
