"""Tokens of the answer back to text, remembering nothing. Others use `detokenizer`."""
