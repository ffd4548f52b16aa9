"""Serves: starts instances and tritonserver as siblings, watches them, restarts processes that die, and
leaves nothing when it ends.
"""
