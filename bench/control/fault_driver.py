"""Executes a plan on a running fleet: starts each rollout, injects its faults, waits until the fleet has recovered.

One thread per fault waits for its phase, strikes, undoes what it did and watches the process come back. Must never
leave a process stopped or a machine cut off, whatever happens to the run.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bench.control.control_api import Refused
from bench.control.fault_plan import CUT, KILL, PHASES, ROLLBACK, STOP, Fault, PlannedRollout
from bench.control.rollout_log import Asked, RolloutLog
from bench.control.running_fleet import RunningFleet

#: Seconds after which the driver restarts a process that has no supervisor.
_REVIVE_SECONDS = 0.5
_RECOVERY_SECONDS = 90.0
_ROLLOUT_SECONDS = 180.0
_POLL_SECONDS = 0.005


@dataclass
class Struck:
    """A fault that happened."""

    number: int
    rollout: int
    fault: Fault
    name: str
    #: The state the rollout was in.
    state: str
    at_ns: int
    #: When it was undone; of a kill, the same.
    undone_ns: int = 0
    #: When the process worked again; None: it did not.
    back_ns: int | None = None


@dataclass
class Course:
    """Everything that happened in a run."""

    struck: list[Struck] = field(default_factory=list)
    #: Rollout number → its outcome.
    rollouts: dict[int, Asked] = field(default_factory=dict)
    #: What did not end in time.
    stuck: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class FaultDriver:
    """Runs a plan."""

    def __init__(self, fleet: RunningFleet, log: RolloutLog, say: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._log = log
        self._say = say
        self._lock = threading.Lock()
        self.course = Course()

    def run(self, plan: Iterable[PlannedRollout]) -> Course:
        for planned in plan:
            self._one(planned)
        return self.course

    def _one(self, planned: PlannedRollout) -> None:
        asked = self._log.ask(time.monotonic_ns())
        self.course.rollouts[planned.number] = asked
        over = threading.Event()
        threads = [
            threading.Thread(target=self._strike, args=(planned, fault, asked, over)) for fault in planned.faults
        ]
        for thread in threads:
            thread.start()
        try:
            self._roll(planned, asked)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        faults = ", ".join(f"{one.kind} {one.role}" for one in planned.faults)
        self._say(f"rollout {planned.number} ({planned.cutover}): {asked.state or 'not started'}; {faults}")

    def _roll(self, planned: PlannedRollout, asked: Asked) -> None:
        api = self._fleet.api
        try:
            if planned.kind == ROLLBACK:
                identity = api.rollback(planned.models[0])
            else:
                changes = dict.fromkeys(planned.models, planned.version)
                identity = api.start_rollout(changes, planned.cutover)
        except Refused as refused:
            self.course.refused.append(f"rollout {planned.number}: {refused}")
            return
        asked.identity = identity
        try:
            api.wait(identity, _ROLLOUT_SECONDS, asked.see)
        except TimeoutError as error:
            self.course.stuck.append(str(error))

    def _strike(self, planned: PlannedRollout, fault: Fault, asked: Asked, over: threading.Event) -> None:
        while not _has_come_to(asked, fault.phase) and not over.is_set():
            time.sleep(_POLL_SECONDS)
        time.sleep(fault.delay_seconds)
        parts = self._fleet.of(fault.role)
        name = parts[fault.index % len(parts)].name
        with self._lock:
            struck = Struck(len(self.course.struck) + 1, planned.number, fault, name, asked.state, time.monotonic_ns())
            self.course.struck.append(struck)
        try:
            self._happen(fault, name)
        finally:
            struck.undone_ns = time.monotonic_ns()
        self._watch(struck)

    def _happen(self, fault: Fault, name: str) -> None:
        if fault.kind == KILL:
            self._fleet.signal(name, signal.SIGKILL)
        elif fault.kind == STOP:
            pid = self._fleet.signal(name, signal.SIGSTOP)
            try:
                time.sleep(fault.lasts_seconds)
            finally:
                if pid and self._fleet.pid(name) == pid:
                    self._fleet.signal(name, signal.SIGCONT)
        elif fault.kind == CUT:
            self._fleet.cut(name)
            try:
                time.sleep(fault.lasts_seconds)
            finally:
                self._fleet.join(name)

    def _watch(self, struck: Struck) -> None:
        """Until the process works again."""
        began = time.monotonic()
        while not self._fleet.responds(struck.name):
            waited = time.monotonic() - began
            if waited > _REVIVE_SECONDS and self._fleet.pid(struck.name) is None:
                self._fleet.revive(struck.name)
            if waited > _RECOVERY_SECONDS:
                self.course.stuck.append(
                    f"{struck.name} is not back {_RECOVERY_SECONDS:.0f} s after a {struck.fault.kind}"
                )
                return
            time.sleep(_POLL_SECONDS)
        struck.back_ns = time.monotonic_ns()


def _has_come_to(asked: Asked, phase: str) -> bool:
    """Whether a rollout is in a phase or beyond it. A rollout that is being aborted enters no other phase."""
    state = asked.state
    if state in PHASES:
        return PHASES.index(state) >= PHASES.index(phase)
    return bool(state) and state not in ("comparing", "canary")
