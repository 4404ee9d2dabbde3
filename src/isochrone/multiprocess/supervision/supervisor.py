"""The supervisor: forks the processes, waits for them, and starts one again that died or hangs.

It has no event loop and no threads, so that a fork is safe at any time. It ends when a stop signal has ended all
processes, or when one cannot start.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from isochrone.clock import SECOND, now_ns
from isochrone.multiprocess.group.board import COORDINATOR, JOINED, SILENT_NS
from isochrone.multiprocess.group.group import ProcessGroup
from isochrone.multiprocess.group.liveness import Liveness, activity
from isochrone.multiprocess.supervision.child import fork
from isochrone.multiprocess.supervision.restarts import Restarts
from isochrone.stop_signals import stop_signals

log = structlog.get_logger(__name__)

#: Seconds between looks at the board.
_LOOK = 0.05
#: Seconds beyond the grace period until a process that does not end is killed.
_PATIENCE = 10.0
#: Nanoseconds between looks at heartbeats.
_CHECK_NS = SECOND // 2
#: A state and processor time that never change.
_NOT_ACTIVE = "", 0


def _liveness() -> Liveness:
    return Liveness(SILENT_NS, _CHECK_NS)


@dataclass(slots=True)
class _Process:
    number: int
    restarts: Restarts = field(default_factory=Restarts)
    #: 0: it does not run.
    pid: int = 0
    started: float = 0.0
    generation: int = 0
    #: When it is started again; None: it is not.
    due: float | None = 0.0
    #: Of the process that runs now.
    liveness: Liveness = field(default_factory=_liveness)


class Supervisor:
    """``serve(number, generation)`` runs a serving process, ``coordinate()`` the coordinator; both return an exit
    status. ``announce`` is called once, when the start of all is over."""

    def __init__(
        self,
        group: ProcessGroup,
        serve: Callable[[int, int], int],
        coordinate: Callable[[], int],
        announce: Callable[[], None],
        exit_timeout: float,
    ) -> None:
        self._group = group
        self._serve = serve
        self._coordinate = coordinate
        self._announce = announce
        self._exit_timeout = exit_timeout
        self._processes = {number: _Process(number) for number in (COORDINATOR, *group.board.numbers)}
        self._stop_signals = frozenset(stop_signals())
        self._signals = frozenset((signal.SIGCHLD, *self._stop_signals))
        self._was_ready = False
        self._ended_at: float | None = None
        self._kill_at = 0.0
        self._checked_at = 0
        self._status = 0

    def run(self) -> int:
        """The exit status of the command."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        while True:
            self._start_due()
            received = signal.sigtimedwait(self._signals, _LOOK)
            # CPython 3.11 returns an uninitialised siginfo when the wait is interrupted, as by SIGSTOP and SIGCONT.
            if received is not None and received.si_signo in self._stop_signals:
                self._stop()
            self._reap()
            self._look()
            if self._ended_at is not None and not any(process.pid for process in self._processes.values()):
                return self._status

    def _start_due(self) -> None:
        if self._ended_at is not None:
            return
        now = time.monotonic()
        for process in self._processes.values():
            if process.due is not None and process.due <= now:
                process.due, process.started, process.liveness = None, now, _liveness()
                process.pid = fork(
                    self._runner(process),
                    self._group.supervisor,
                    self._signals,
                    # The coordinator ends after the others, also when a terminal sends SIGINT to all at once.
                    self._signals - {signal.SIGTERM, signal.SIGCHLD} if process.number == COORDINATOR else frozenset(),
                )
                process.generation += 1

    def _runner(self, process: _Process) -> Callable[[], int]:
        number, generation = process.number, process.generation
        if number == COORDINATOR:
            return self._coordinate
        return lambda: self._serve(number, generation)

    def _reap(self) -> None:
        for process in self._processes.values():
            if not process.pid:
                continue
            pid, wait_status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                self._ended(process, os.waitstatus_to_exitcode(wait_status))

    def _ended(self, process: _Process, status: int) -> None:
        pid, process.pid = process.pid, 0
        self._group.board.clear(process.number)
        if self._ended_at is not None:
            # A process that had just been forked has no handler of SIGTERM yet.
            if status not in (0, -signal.SIGTERM) and not self._status and self._was_ready:
                log.warning("a process did not end in good order", number=process.number, pid=pid, status=status)
                self._status = 1
            return
        pause = process.restarts.pause(status, time.monotonic() - process.started, was_ready=self._was_ready)
        if pause is None:
            log.error("a process cannot start; stopping", number=process.number, status=status)
            self._status = 1
            self._stop()
            return
        log.error("a process ended; starting it again", number=process.number, pid=pid, status=status, pause=pause)
        process.due = time.monotonic() + pause

    def _look(self) -> None:
        if not self._was_ready and self._ended_at is None and self._group.board.all_started():
            self._was_ready = True
            self._announce()
        self._check_silence()
        if self._ended_at is None:
            return
        serving = [process for process in self._processes.values() if process.pid and process.number != COORDINATOR]
        if serving and time.monotonic() > self._kill_at:
            for process in serving:
                log.error("a process does not end and is killed", number=process.number, pid=process.pid)
                os.kill(process.pid, signal.SIGKILL)
            self._kill_at = time.monotonic() + _PATIENCE
        coordinator = self._processes[COORDINATOR]
        if not serving and coordinator.pid:
            os.kill(coordinator.pid, signal.SIGTERM)

    def _check_silence(self) -> None:
        """Kill a process that is stopped or stuck: what was sent to it would wait without end. It is started again.

        The coordinator computes for no longer than a moment, so its heartbeat alone counts.
        """
        now, board = now_ns(), self._group.board
        if now - self._checked_at < _CHECK_NS:
            return
        self._checked_at = now
        for number, process in self._processes.items():
            if not process.pid or board.pid(number) != process.pid:
                continue
            if number != COORDINATOR and self._ended_at is not None:
                # Those that end have a time limit of their own.
                continue
            found = _NOT_ACTIVE if number == COORDINATOR else activity(process.pid)
            if process.liveness.is_silent(board.silence(number, now), found, now):
                log.error("a process does not respond and is killed", number=number, pid=process.pid)
                board.mark(number, JOINED, on=False)
                process.liveness = _liveness()
                os.kill(process.pid, signal.SIGKILL)

    def _stop(self) -> None:
        """Forward a stop signal; repeated ones have no further effect."""
        if self._ended_at is not None:
            return
        self._ended_at = time.monotonic()
        self._kill_at = self._ended_at + self._exit_timeout + _PATIENCE
        for process in self._processes.values():
            if process.pid and process.number != COORDINATOR:
                os.kill(process.pid, signal.SIGTERM)
