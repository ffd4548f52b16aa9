"""How well the lengths of a model's answers to the real prompts can be predicted, and from what."""
