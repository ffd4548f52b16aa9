"""What follows from predicted lengths: the length of answers, the memory they will need, and whose turn it
is.

Used by the slot scheduler and its policies.
"""
