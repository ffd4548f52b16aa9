"""A described model as an OpenVINO graph, with layers fused by code of our own."""
