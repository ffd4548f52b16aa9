"""A load test against a running server; see `python -m client.bench --help`."""
