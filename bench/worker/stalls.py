"""The machine's own stalls, measured beside a run: a process that sleeps 500 µs at a time and records late wake-ups.

A probe that spins would take one of two cores from what is being measured; this one uses about 2 % of one. If
permitted, it runs at real-time priority, so that a late wake-up is a stall of the machine (a hypervisor that took the
core), not the wait for a core that our own load uses; `realtime` records whether it did.
"""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from bench.worker.machine import at_real_time_priority

SLEEP_SECONDS = 0.0005
STALL_NS = 1_000_000
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Stalls:
    """Late wakings as (monotonic ns of the waking, ns late)."""

    realtime: bool = False
    events: list[tuple[int, int]] = field(default_factory=list)

    def between(self, start_ns: int, end_ns: int) -> list[int]:
        """How long each stall in a stretch of time lasted, in ns."""
        return [late for at, late in self.events if start_ns <= at <= end_ns]


class StallProbe:
    """Runs the probe in a process of its own while the block runs; `stalls` is there after it."""

    def __init__(self) -> None:
        self.stalls = Stalls()

    def __enter__(self) -> "StallProbe":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker.stalls"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # At the end of its input, the probe stops and prints its results.
        output, _ = self._process.communicate()
        document = json.loads(output)
        self.stalls = Stalls(document["realtime"], [(at, late) for at, late in document["events"]])


def steal_seconds() -> float:
    """CPU time a hypervisor gave to others so far, over all cores."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def _watch() -> dict[str, object]:
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    realtime = at_real_time_priority(10)
    events = []
    before = time.monotonic_ns()
    while not ended.is_set():
        time.sleep(SLEEP_SECONDS)
        now = time.monotonic_ns()
        late = now - before - int(SLEEP_SECONDS * 1e9)
        if late > STALL_NS:
            events.append((now, late))
        before = now
    return {"realtime": realtime, "events": events}


if __name__ == "__main__":
    print(json.dumps(_watch()))
