"""Engines compute and never decide: a plan in, tokens out."""
