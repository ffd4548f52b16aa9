"""Starts instances and tritonserver as siblings, watches them, restarts processes that die, and leaves no
processes or files when it ends.
"""
