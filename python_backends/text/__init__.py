"""Text at both ends: prompts to token ids at the door, tokens of the answer back
to text. Neither torch nor Triton is known here.
"""
