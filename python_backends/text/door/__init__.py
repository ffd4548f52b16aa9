"""Prompts in: what a request may ask, its template, its special tokens, its token ids. Others use `door`."""
