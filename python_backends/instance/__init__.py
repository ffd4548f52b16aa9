"""The instance: the loop over a slot scheduler and an engine, and its process.
The launcher starts it; programs use `loop` and `build`.
"""
