"""Text on both sides: the door turns prompts into token ids, the detokenizer turns the answer's tokens into
text. Imports neither torch nor Triton.
"""
