"""A load test against a running server; `python -m client.bench --help` tells how to use it."""
