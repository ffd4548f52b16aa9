"""What a model is: read from its checkpoint, written down as plain data, with its weights."""
