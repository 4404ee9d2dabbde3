"""Landlock: the calling thread, and all that it starts, keep only the rights to files that rules give.

Every right that the kernel knows is handled, so that what no rule gives is denied. Structures and bits are those of
linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from isochrone.secure.sandbox.kernel import system_call

# The same numbers on every architecture.
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15
#: By the version of the interface: the bits of files that exist.
_FILE_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
_FILE_BITS_SINCE_5 = 16
_NETWORK = 0b11  # bind and connect of TCP
_SCOPES = 0b11  # abstract Unix sockets, signals
#: What a rule of a file, rather than a directory, may name.
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

READ = _READ_FILE | _READ_DIR
READ_AND_EXECUTE = READ | _EXECUTE
#: Of a device such as /dev/null.
READ_AND_WRITE = READ | _WRITE_FILE
#: Everything except programs and device nodes: rights 6 and 11.
FULL = ((1 << 16) - 1) & ~(_EXECUTE | 1 << 6 | 1 << 11 | _IOCTL_DEV)


@dataclass(frozen=True, slots=True)
class Rule:
    """Rights to a file, or to all beneath a directory."""

    path: str
    rights: int


def version() -> int:
    """The version of the kernel's interface; 0: it has none, or it is switched off."""
    try:
        return system_call(_CREATE, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class Ruleset:
    """Rules that ``restrict`` puts into force."""

    descriptor: int

    def restrict(self) -> None:
        """For the calling thread, for ever. The thread must have no_new_privs."""
        system_call(_RESTRICT, self.descriptor, 0)
        os.close(self.descriptor)


def ruleset(abi: int, rules: Iterable[Rule], *, network: bool) -> Ruleset:
    """Reads the paths; those that do not exist give no right. ``network``: TCP is not restricted."""
    handled = (1 << _FILE_BITS.get(abi, _FILE_BITS_SINCE_5)) - 1
    words = [handled]
    if abi >= 4:
        words.append(0 if network else _NETWORK)
    if abi >= 6:
        words.append(_SCOPES)
    descriptor = system_call(_CREATE, _buffer(struct.pack(f"={len(words)}Q", *words)), 8 * len(words), 0)
    for rule in rules:
        _add(descriptor, handled, rule)
    return Ruleset(descriptor)


def _add(ruleset: int, handled: int, rule: Rule) -> None:
    try:
        opened = os.open(rule.path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    rights = rule.rights & handled
    if not stat.S_ISDIR(os.fstat(opened).st_mode):
        rights &= _OF_FILES
    system_call(_ADD_RULE, ruleset, _PATH_BENEATH, _buffer(struct.pack("=Qi", rights, opened)), 0)
    # A rule is of a file's inode. Those of /proc live only as long as something holds them open.
    if not rule.path.startswith("/proc/"):
        os.close(opened)


def _buffer(content: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(content, len(content))
