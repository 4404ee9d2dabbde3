"""Filters of system calls in classic BPF, the language of seccomp: rules in, bytes out.

A filter allows every system call that no rule denies. A rule denies one call always, or where comparisons of its
arguments hold. Numbers that the kernel may add later, and those of another architecture, are denied: nobody has judged
them. Layout and opcodes: linux/filter.h, linux/bpf_common.h, linux/seccomp.h.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_ABOVE = 0x25  # BPF_JMP | BPF_JGT | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_RET_ALLOW = 0x7FFF0000
_RET_ERRNO = 0x00050000

# struct seccomp_data { int nr; u32 arch; u64 instruction_pointer; u64 args[6]; }
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_WHOLE = 0xFFFFFFFF
#: The result of a denied call that shall look as if it had succeeded.
PRETEND = 0


@dataclass(frozen=True, slots=True)
class Compare:
    """One comparison of a 32-bit half of an argument: ``(half & mask) == value``, or ``!=``."""

    argument: int
    value: int
    equal: bool = True
    mask: int = _WHOLE
    #: The upper half, of arguments with 64 bits such as pointers.
    upper: bool = False


@dataclass(frozen=True, slots=True)
class Deny:
    """Denies the call ``number``: if all comparisons of one of ``where`` hold; (): always."""

    number: int
    where: tuple[tuple[Compare, ...], ...] = ()
    error: int = errno.EPERM


Instruction = tuple[int, int, int, int]


def assemble(architecture: int, highest: int, rules: Sequence[Deny]) -> list[Instruction]:
    """The program of a filter; ``highest``: the last number that is allowed, ``architecture``: as AUDIT_ARCH_…"""
    program = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture),
        _returning(errno.ENOSYS),
        (_LOAD_WORD, 0, 0, _NUMBER),
        (_JUMP_ABOVE, 0, 1, highest),
        _returning(errno.ENOSYS),
    ]
    for rule in rules:
        block = _block(rule)
        # A block ends in a return on every path, so the number stays loaded for the next rule.
        program += [(_JUMP_EQUAL, 0, _near(len(block)), rule.number), *block]
    return [*program, (_RETURN, 0, 0, _RET_ALLOW)]


def encoded(program: Sequence[Instruction]) -> bytes:
    """As an array of struct sock_filter."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _block(rule: Deny) -> list[Instruction]:
    if not rule.where:
        return [_returning(rule.error)]
    block: list[Instruction] = []
    for clause in rule.where:
        block += _clause(clause, rule.error)
    return [*block, (_RETURN, 0, 0, _RET_ALLOW)]


def _clause(clause: Sequence[Compare], error: int) -> list[Instruction]:
    """Returns the error if all comparisons hold; goes on behind itself otherwise."""
    code: list[Instruction] = [_returning(error)]
    for compare in reversed(clause):
        # To the end of the clause, over the comparisons that follow.
        away = _near(len(code))
        code.insert(0, (_JUMP_EQUAL, *((0, away) if compare.equal else (away, 0)), compare.value))
        if compare.mask != _WHOLE:
            code.insert(0, (_AND, 0, 0, compare.mask))
        code.insert(0, (_LOAD_WORD, 0, 0, _ARGUMENTS + 8 * compare.argument + (4 if compare.upper else 0)))
    return code


def _near(distance: int) -> int:
    if distance > 255:
        raise ValueError(f"a jump over {distance} instructions; BPF has 8 bits for it")
    return distance


def _returning(error: int) -> Instruction:
    return (_RETURN, 0, 0, _RET_ERRNO | error)
