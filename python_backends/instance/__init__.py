"""The instance: the loop over a scheduler and an engine, and its process. The
launcher starts it; programs use `loop` and `build`.
"""
