"""Answers that follow a guide: which tool is called, and what a text looks like.

`choice` reads tool_choice, `wanted` the format of a text, `inputs` the grammars of custom tools; `writing`
makes one guide of all, in the model's own way to write, with what `lenient` leaves of schemas; `guide` is
what the ensemble is asked with. docs/structured.md has the guides themselves.
"""
