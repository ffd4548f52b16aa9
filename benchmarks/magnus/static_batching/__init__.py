"""Static batching as Magnus does it, for programs and benchmarks.
No process of a server imports it.
"""
