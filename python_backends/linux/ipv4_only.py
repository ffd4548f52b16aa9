"""Runs a program that can open no IPv6 sockets: `python -m python_backends.linux.ipv4_only COMMAND…`

gRPC opens 0.0.0.0 for IPv6, too, which a firewall for IPv4 does not cover. Where the kernel offers no IPv6 it
does not. So this program installs a filter of system calls (seccomp) and becomes COMMAND, which inherits it.
Called by the command line of tritonserver.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

_SOCKET = {
    "x86_64": (0xC000003E, 41),
    "aarch64": (0xC00000B7, 198),
}  # platform in the kernel, number of socket(2)
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
# places in the kernel's struct seccomp_data
_NUMBER, _PLATFORM, _FIRST_ARGUMENT = 0, 4, 16
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06


def forbid_ipv6() -> None:
    """Lets this process, and all that it starts, open no IPv6 sockets from now on. Raises OSError."""
    if platform.machine() not in _SOCKET:
        raise OSError(errno.ENOSYS, f"not known on {platform.machine()}")
    program = _program(*_SOCKET[platform.machine()])
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HL", len(program) // 8, ctypes.addressof(held))
    _control(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _control(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.create_string_buffer(described, len(described)), 0, 0)


def _program(kernel_platform: int, socket_number: int) -> bytes:
    """The filter: each row an instruction, how far to jump if equal and if not, and its number."""
    rows = (
        (_LOAD, 0, 0, _PLATFORM),
        (_JUMP_IF_EQUAL, 0, 5, kernel_platform),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_IF_EQUAL, 0, 3, socket_number),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_IF_EQUAL, 0, 1, socket.AF_INET6),
        (_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    )
    return b"".join(struct.pack("HBBI", *row) for row in rows)


def _control(*arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    converted = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    if libc.prctl(*converted) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    try:
        forbid_ipv6()
    except OSError as error:
        print(f"gapless: gRPC listens on IPv6, too: {error}", file=sys.stderr)
    os.execvp(sys.argv[1], sys.argv[1:])
