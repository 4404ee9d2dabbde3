"""Classic BPF as the kernel runs it, in Python: what a filter returns for one system call."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from isochrone.secure.sandbox.system_calls.bpf import Instruction

ALLOW = 0x7FFF0000


def run(program: Sequence[Instruction], number: int, architecture: int, arguments: Sequence[int] = ()) -> int:
    """The filter's return value; raises for a program that the kernel would not accept or that never returns."""
    words = [argument & (2**64 - 1) for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack("<iIQ6Q", number if number < 2**31 else number - 2**32, architecture, 0, *words)
    accumulator, counter = 0, 0
    while True:
        code, jump_true, jump_false, constant = program[counter]
        counter += 1
        if code == 0x20:
            assert constant % 4 == 0
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif code == 0x54:
            accumulator &= constant
        elif code == 0x15:
            counter += jump_true if accumulator == constant else jump_false
        elif code == 0x25:
            counter += jump_true if accumulator > constant else jump_false
        else:
            assert code == 0x06
            return constant


def denied_with(result: int) -> int | None:
    """The error of a denied call; None: it is allowed."""
    return None if result == ALLOW else result & 0xFFFF
