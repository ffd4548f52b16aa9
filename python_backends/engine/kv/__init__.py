"""The KV cache of the engines on a CPU and of the torch engine: its layout, its memory, its blocks as bytes,
padded numbers of rows.
"""
