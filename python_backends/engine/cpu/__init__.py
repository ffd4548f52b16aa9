"""Layers in C++ for a CPU, from tokens to logits in one call a step: `layers.h` is their interface. Kernels,
the tables that are handed over, and the steps of an engine that has them.
"""
