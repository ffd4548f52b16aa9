"""Small tokenizers and checkpoints of every kind, and answers sent in windows."""
