"""Which of several instances gets a request.

Pure: the scheduler model and the benchmarks call the same `Router`. A policy is one file in `policies/`.
"""
