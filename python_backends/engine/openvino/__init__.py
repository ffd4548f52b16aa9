"""A described model as an OpenVINO graph, with layers fused by code of our own."""

BLOCK_TOKENS = 32  # what the CPU plugin's attention takes
