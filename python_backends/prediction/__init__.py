"""How long answers will be: features, forest, history, what is logged and what is learned. All of it may fail."""
