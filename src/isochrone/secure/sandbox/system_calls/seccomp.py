"""Puts a filter of system calls into force, for the calling thread and all that it starts."""

from __future__ import annotations

import ctypes
import os
import struct

from isochrone.secure.sandbox.kernel import system_call
from isochrone.secure.sandbox.system_calls.bpf import encoded
from isochrone.secure.sandbox.system_calls.numbers import present_architecture
from isochrone.secure.sandbox.system_calls.rules import Allowance, filter_program

_SET_MODE_FILTER, _GET_ACTION_AVAIL = 1, 2
_RET_ERRNO = 0x00050000


def is_available() -> bool:
    """Whether the kernel has filters, and this package the numbers of the machine's system calls."""
    architecture = present_architecture()
    if architecture is None:
        return False
    action = ctypes.create_string_buffer(struct.pack("=I", _RET_ERRNO), 4)
    try:
        system_call(architecture.numbers["seccomp"], _GET_ACTION_AVAIL, 0, action)
    except OSError:
        return False
    return True


def restrict(allowance: Allowance) -> None:
    """For ever. The thread must have no_new_privs."""
    architecture = present_architecture()
    if architecture is None:
        raise OSError(f"no numbers of system calls for {os.uname().machine}")
    program = encoded(filter_program(architecture, allowance))
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog { unsigned short len; struct sock_filter *filter; }
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    system_call(architecture.numbers["seccomp"], _SET_MODE_FILTER, 0, ctypes.create_string_buffer(header, len(header)))
