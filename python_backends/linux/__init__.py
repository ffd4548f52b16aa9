"""Uses functions of the Linux kernel: time slices, processors, large pages, process groups, a clock without
pauses of the machine.

Any room may use it.
"""
