"""Which of several instances gets a request, and how many instances there are.

Pure: the scheduler model and the benchmarks call the same `Router`. A policy is one file in `policies/`.
"""
