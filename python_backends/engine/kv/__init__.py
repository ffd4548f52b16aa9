"""The KV cache of the engines on a CPU and of the torch engine: its
layout, its memory, padded numbers of rows.
"""
