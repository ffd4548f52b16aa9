"""Text at both ends: prompts to token ids at the door, tokens of the answer back to text. Nothing here
imports torch or Triton.
"""
