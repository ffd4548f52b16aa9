"""The parts of an answer: thoughts, text, and calls of tools.

`formats` has the ways in which models write them, as data; `feeding` puts an answer's tokens and text
together; `reading` is what has come, read piece by piece; `machine` finds the parts in it, `calls` and
`channels` those inside of calls and in gpt-oss's channels; `answer` is all of it for one answer.
"""
