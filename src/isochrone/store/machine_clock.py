"""A clock that all processes of one machine share, and the identity of the boot that it counts from.

Leases in a file expire by it. It includes the time that the machine is suspended, as leases must. After a restart of
the machine its readings are meaningless, which the identity of the boot reveals.
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
