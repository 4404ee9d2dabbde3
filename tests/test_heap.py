"""When freed memory is returned to the operating system, and that it is."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from isochrone.heap import HeapTrimming

MIB = 1 << 20


class Process:
    """The figures of a process, as the test sets them."""

    def __init__(self) -> None:
        self.held, self.peak, self.trims = 0, 0, 0
        self.trimming = HeapTrimming(lambda: self.held, lambda: self.peak, self.trim)

    def trim(self) -> None:
        self.trims += 1

    def looks(self, *figures: tuple[int, int]) -> list[int]:
        """How often it was trimmed at each look, given the MiB held at most since the look before, and now."""
        found = []
        for peak, held in figures:
            self.peak, self.held, before = peak * MIB, held * MIB, self.trims
            self.trimming.look()
            found.append(self.trims - before)
        return found


def test_after_many_large_messages_memory_is_returned_once() -> None:
    assert Process().looks((300, 200), (200, 0), (0, 0), (0, 0)) == [0, 0, 1, 0]


def test_after_few_it_is_kept() -> None:
    assert Process().looks((0, 0), (20, 0), (0, 0), (20, 20), (0, 0)) == [0, 0, 0, 0, 0]


def test_nothing_is_returned_while_large_messages_come_or_are_held() -> None:
    assert Process().looks((300, 0), (300, 0), (20, 20), (20, 0), (0, 0)) == [0, 0, 0, 1, 0]


_SCRIPT = """
import ctypes
import numpy as np
from isochrone.heap import trim

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
before = resident()
large = np.ones(31 << 20, np.uint8)
del large
held = [np.ones(16 << 20, np.uint8) for _ in range(10)]
libc.malloc(1 << 20)  # at the end of the heap, and stays
del held
print(resident() - before)
trim()
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc")
def test_freed_messages_below_a_block_that_stays_are_returned() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, check=True)
    kept, left = map(int, done.stdout.split())
    # What glibc does by itself; if that changes, this module has no purpose.
    assert kept > 100
    assert left < 60
