"""What predicted lengths say: how far answers will go, what memory that takes, whose turn it is.

Read by the slot scheduler and its policies.
"""
