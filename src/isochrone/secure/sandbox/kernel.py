"""System calls that Python has no function for. Each raises ``OSError`` when it fails."""

from __future__ import annotations

import ctypes
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.restype = ctypes.c_int
_libc.unshare.restype = ctypes.c_int
_libc.mount.restype = ctypes.c_int

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
_MOUNT_SETATTR = 442  # on every architecture
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000


def system_call(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Its result. Buffers are passed as ctypes arrays, None as a null pointer."""
    words = [
        ctypes.c_void_p(None)
        if each is None
        else ctypes.c_long(each)
        if isinstance(each, int)
        else ctypes.cast(each, ctypes.c_void_p)
        for each in arguments
    ]
    return _checked(_libc.syscall(ctypes.c_long(number), *words))


def prctl(option: int, *arguments: int) -> int:
    words = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)[:4]]
    return _checked(_libc.prctl(ctypes.c_int(option), *words))


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _checked(
        _libc.mount(
            source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode() or None
        )
    )


def mount_everything_read_only() -> None:
    """Every mount of this mount namespace."""
    attributes = struct.pack("=4Q", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    path, buffer = ctypes.create_string_buffer(b"/"), ctypes.create_string_buffer(attributes, len(attributes))
    system_call(_MOUNT_SETATTR, _AT_FDCWD, path, _AT_RECURSIVE, buffer, len(attributes))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
