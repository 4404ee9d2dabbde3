"""A clock that all processes of one machine share, and the name of the boot it counts from.

Leases in a file end by it. It goes on while the machine sleeps, as leases must; after a restart of the machine its
readings mean nothing, which the boot's name tells.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class MachineClock:
    boot: str
    now_ns: Callable[[], int]


def machine_clock() -> MachineClock:
    return MachineClock(Path("/proc/sys/kernel/random/boot_id").read_text().strip(), boottime_ns)
