"""Measures how long an event loop is held: a timer of 1 ms, and the processor time of the loop's thread meanwhile.

A late firing has one of three causes. The loop's own work: its thread used the processor meanwhile. A garbage
collection: the interpreter reports its start and end. The machine: the thread used no processor time. Only the first
two are the process's own, so a stall is recorded with all three figures.
"""

import asyncio
import gc
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

INTERVAL = 0.001
#: Stalls above this are kept one by one.
KEPT_NS = 1_000_000


@dataclass
class Stall:
    """One late firing, in ns. ``own``: processor time of the loop's thread while it was late, without collections.
    ``requests``: callers' requests that were taken meanwhile: a burst of them is a long turn, too."""

    at: int
    late: int
    own: int
    collecting: int
    requests: int = 0


@dataclass
class Held:
    """One stretch of watching."""

    name: str
    started: int
    ended: int = 0
    fired: int = 0
    #: Processor time of the process, all threads, and of the loop's thread.
    process_ns: int = 0
    loop_ns: int = 0
    #: ns that each firing was late, in steps of 100 µs.
    late_counts: dict[int, int] = field(default_factory=dict)
    #: The same of the processor time of the loop's thread meanwhile, without collections.
    own_counts: dict[int, int] = field(default_factory=dict)
    stalls: list[Stall] = field(default_factory=list)
    #: Generation and ns of each collection.
    collections: list[tuple[int, int]] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        return asdict(self)


class LoopWatch:
    """Watches the running loop from now on."""

    def __init__(self, blame: float = 0.0) -> None:
        """``blame``: seconds without a firing after which the stack goes to the standard error; 0: never."""
        self._loop = asyncio.get_running_loop()
        self._held = Held("start", time.monotonic_ns())
        self._process_at = time.process_time_ns()
        self._loop_at = self._cpu = time.thread_time_ns()
        self._collecting = self._collection_began = 0
        #: Callers' requests so far, and before the present interval.
        self.requests = self._requests_before = 0
        #: The present firing is late for what was done between two stretches.
        self._skips = False
        gc.callbacks.append(self._collection)
        self._plan()
        if blame:
            sys.setswitchinterval(0.0005)
            threading.Thread(target=self._find, args=(threading.get_ident(), int(blame * 1e9)), daemon=True).start()

    def _find(self, loop_thread: int, blame_ns: int) -> None:
        """Look every millisecond whether the loop is late, and where it is."""
        blamed = 0
        while True:
            time.sleep(0.001)
            if time.monotonic_ns() - self._due > blame_ns and blamed != self._due:
                blamed = self._due
                stack = traceback.extract_stack(sys._current_frames()[loop_thread])
                places = [f"{Path(each.filename).stem}.{each.name}:{each.lineno}" for each in reversed(stack)]
                print("late:", " < ".join(places[:8]), file=sys.stderr, flush=True)

    def _collection(self, phase: str, information: dict[str, int]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            self._collection_began = now
        else:
            took = now - self._collection_began
            self._collecting += took
            self._held.collections.append((information["generation"], took))

    def _plan(self) -> None:
        self._due = time.monotonic_ns() + int(INTERVAL * 1e9)
        self._cpu = time.thread_time_ns()
        self._collecting = 0
        self._requests_before = self.requests
        self._loop.call_later(INTERVAL, self._fire)

    def _fire(self) -> None:
        now = time.monotonic_ns()
        if self._skips:
            self._skips = False
            self._plan()
            return
        held = self._held
        held.fired += 1
        late = max(0, now - self._due)
        own = min(late, max(0, time.thread_time_ns() - self._cpu - self._collecting))
        for counts, value in ((held.late_counts, late), (held.own_counts, own)):
            step = value // 100_000
            counts[step] = counts.get(step, 0) + 1
        if late > KEPT_NS:
            requests = self.requests - self._requests_before
            held.stalls.append(Stall(now, late, own, min(late, self._collecting), requests))
        self._plan()

    def end(self) -> Held:
        """End the present stretch. What is done until ``begin`` does not count."""
        held = self._held
        held.ended = time.monotonic_ns()
        held.process_ns = time.process_time_ns() - self._process_at
        held.loop_ns = time.thread_time_ns() - self._loop_at
        return held

    def begin(self, name: str) -> None:
        """Begin another stretch."""
        self._held = Held(name, time.monotonic_ns())
        self._process_at, self._loop_at = time.process_time_ns(), time.thread_time_ns()
        self._skips = True
