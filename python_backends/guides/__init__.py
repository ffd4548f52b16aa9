"""Guides: what an answer must look like. Guides of all types become one kind of grammar, which llguidance
compiles, and of which it knows at each token which ones may come next. Imports nothing of the project.
"""
