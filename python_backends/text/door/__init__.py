"""Checks requests and turns prompts into token ids. Other rooms use `door`."""
