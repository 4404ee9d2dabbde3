"""Resident memory of this process, and memory that is free on the machine."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def give_back() -> None:
    """Returns freed memory to the system, so that the next load is seen in whole."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:  # another C library
        pass


def available_bytes(root: Path = Path("/")) -> int | None:
    """Of the machine, or of the container's limit where that is less; None: unknown."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None
    try:
        limit = int((root / "sys/fs/cgroup/memory.max").read_text())
        used = int((root / "sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no limit, or "max"
        return free
    return max(0, min(free, limit - used))


def size_of_files(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
