"""Static batching as Magnus does it, for programs and benchmarks. Nothing that serves imports this room."""
