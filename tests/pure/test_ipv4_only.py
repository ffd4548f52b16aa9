"""A program that can open no IPv6 sockets."""

from __future__ import annotations

import subprocess
import sys

from python_backends.linux import ipv4_only

PROGRAM = """
import socket
socket.create_server(("127.0.0.1", 0))
try:
    socket.socket(socket.AF_INET6)
except OSError as error:
    print(error.strerror)
"""


def test_it_opens_ipv4_sockets_and_no_ipv6_ones() -> None:
    command = [sys.executable, "-m", ipv4_only.__name__, sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "Address family not supported by protocol\n"
    assert not done.stderr
