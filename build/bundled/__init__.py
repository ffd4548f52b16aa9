"""Everything that makes the bundled model: its text, its tasks, its
tokenizer, its training and its evaluation.
"""
