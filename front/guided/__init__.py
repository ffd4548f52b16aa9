"""Answers that follow a guide: which tool is called, and what a text looks like.

`choice` reads tool_choice, `wanted` the format of a text; `writing` makes one guide of both, in the model's
own way to write; `guide` is what the ensemble is asked with. docs/structured.md has the guides themselves.
"""
