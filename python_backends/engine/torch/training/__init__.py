"""Gradients of LoRA adapters with the operators of the torch engine: forward and backward in tiles.

Others use `model.py` (a model that can be trained), `adapter.py` and `optimiser.py`.
"""
