"""Faults of one worker under load: starved of CPU, then stopped, then killed.

Starved means stopped for 80 of every 100 ms, as the kernel does with a container whose quota is a fifth of a
core (CFS bandwidth control: a period of 100 ms, run, then throttled). Done by signals, it needs no rights to cgroups. A
thread of its own keeps the time; it sleeps between signals. Must never signal anything but the worker it was given.
"""

import signal
import threading
import time
from collections.abc import Sequence
from types import TracebackType

from bench.gateway.fleet import Worker

HEALTHY, STARVED, STOPPED, KILLED = "healthy", "starved", "stopped", "killed"
PHASES = (HEALTHY, STARVED, STOPPED, KILLED)
PERIOD_SECONDS = 0.1
STOPPED_SHARE = 0.8


class Troubles:
    """Run the phases, each for `seconds`, while the block runs; `began` holds the start of each (monotonic ns)."""

    def __init__(self, victim: Worker, phase_seconds: float, phases: Sequence[str] = PHASES) -> None:
        self._victim = victim
        self._phase_seconds = phase_seconds
        self._phases = phases
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.began: list[tuple[str, int]] = []

    def __enter__(self) -> "Troubles":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._victim.peer.alive():
            self._victim.signal(signal.SIGCONT)

    def phase_at(self, instant_ns: int) -> str:
        """The phase an instant lies in."""
        current = self._phases[0]
        for phase, began in self.began:
            if instant_ns >= began:
                current = phase
        return current

    def _run(self) -> None:
        start = time.monotonic()
        for number, phase in enumerate(self._phases):
            until = start + (number + 1) * self._phase_seconds
            self.began.append((phase, time.monotonic_ns()))
            if phase == STARVED:
                self._starve(until)
            elif phase == STOPPED:
                self._victim.signal(signal.SIGSTOP)
            elif phase == KILLED:
                self._victim.signal(signal.SIGKILL)
            if self._ended.wait(max(0.0, until - time.monotonic())):
                return

    def _starve(self, until: float) -> None:
        beat = time.monotonic()
        while beat < until and not self._ended.is_set():
            self._victim.signal(signal.SIGSTOP)
            self._ended.wait(max(0.0, beat + PERIOD_SECONDS * STOPPED_SHARE - time.monotonic()))
            self._victim.signal(signal.SIGCONT)
            beat += PERIOD_SECONDS
            self._ended.wait(max(0.0, beat - time.monotonic()))
