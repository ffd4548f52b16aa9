"""Scheduling decides which sequence gets a slot, which blocks it gets, and which tokens the next step
computes. It uses no tensors.
"""
