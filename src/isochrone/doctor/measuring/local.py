"""Times that one process can take alone: sleeps, work after a pause, fresh memory, the clock."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager

from isochrone.clock import MICROSECOND, now_ns
from isochrone.doctor.facts import Times
from isochrone.doctor.measuring.samples import times_of

#: prctl(2), linux/prctl.h
_PR_SET_TIMERSLACK = 29
_SLEEP_US = 100
_SLEEPS = 500
_PAUSE = 0.005
_WORKS = 150
#: Additions; some 30 µs.
_WORK = range(2000)
_HUGE = 2 * 1024 * 1024
_REGIONS = 32
_READS = 50_000


def overshoot() -> Times:
    """How much later than asked a sleep of 100 µs ends."""
    found = []
    for _ in range(_SLEEPS):
        begun = now_ns()
        time.sleep(_SLEEP_US / 1e6)
        found.append(now_ns() - begun - _SLEEP_US * MICROSECOND)
    return times_of(found)


@contextmanager
def timer_slack(nanoseconds: int) -> Iterator[None]:
    """Another timer slack for this thread, meanwhile. Zero is the process's default again (prctl(2))."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_TIMERSLACK, nanoseconds, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_TIMERSLACK) failed")
    try:
        yield
    finally:
        library.prctl(_PR_SET_TIMERSLACK, 0, 0, 0, 0)


def work(pause: bool) -> Times:
    """A fixed piece of work: repeated, or each time after some milliseconds of sleep."""
    found = []
    for _ in range(_WORKS):
        if pause:
            time.sleep(_PAUSE)
        begun = now_ns()
        sum(_WORK)
        found.append(now_ns() - begun)
    return times_of(found)


def first_touch(small: bool) -> Times:
    """The first write to a page of fresh memory: the kernel clears a small page, or a huge one if it is set so."""
    found = []
    with mmap.mmap(-1, _HUGE * _REGIONS, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if small:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        # Without the two ends: the mapping need not begin at a multiple of 2 MiB.
        for region in range(1, _REGIONS - 1):
            begun = now_ns()
            memory[region * _HUGE] = 1
            found.append(now_ns() - begun)
    return times_of(found)


def clock_read_ns() -> float:
    """The fastest of five rounds, as nanoseconds per reading; Python's call is some 30 ns of it."""
    rounds = []
    for _ in range(5):
        begun = now_ns()
        for _ in range(_READS // 5):
            now_ns()
        rounds.append((now_ns() - begun) / (_READS // 5))
    return min(rounds)
