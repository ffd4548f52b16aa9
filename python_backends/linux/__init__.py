"""Functions of the Linux kernel: time slices, processors, large pages, process groups, a clock that knows of
pauses.

Any room may use it.
"""
