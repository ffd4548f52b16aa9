"""The torch engine's forward pass: one flat batch of tokens through layers, operators and kernels."""
