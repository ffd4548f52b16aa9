"""What the device holds of each slot, and how the next token of each is chosen."""
