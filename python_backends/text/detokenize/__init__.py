"""Turns the answer's tokens into text and keeps no state between calls. Other rooms use `detokenizer`."""
