"""Prompts as people write them to a chat model, with the lengths of a published model's answers."""
