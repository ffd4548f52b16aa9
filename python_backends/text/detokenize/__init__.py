"""Tokens of the answer back to text, without state. Others use `detokenizer`."""
