"""A fleet on three members of etcd, and the ways into each phase of a strict rollout with its leader killed there.

A phase is held open until it has been struck, by what a fleet may meet anyway: a load that takes its time, a gateway or
a worker that is stopped. What the phase was is read from the store after the blow. Must never leave a process stopped.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet_trial import Trial, wait_until

from bench.control.control_api import ControlApi
from bench.control.etcd_cluster import EtcdCluster
from bench.control.fleet_run import SupervisedFleet
from bench.control.models import MODELS, SOLO
from bench.control.rollout_log import Asked
from bench.control.running_fleet import CONTROLLER
from isochrone.control.state.keys import Keys
from isochrone.control.state.rollout_records import ANNOUNCED, CANCELLED, HOLDING
from isochrone.control.state.view import View
from isochrone.store.base import Store

#: Of the fleet that bench/control describes.
KEYS = Keys("proof")
_EVERYBODY = {"gw-1", "gw-2", "cpu-1", "cpu-2"}
_TRIES = 8
#: Stops a process by its name, or lets it go on.
Stop = Callable[[str, bool], None]


@dataclass
class Stage:
    """A fleet on three members of etcd, and an eye on its store that needs no controller."""

    fleet: SupervisedFleet
    etcd: EtcdCluster
    #: Loads of ``solo`` wait while it is there.
    gate: Path
    store: Store
    runner: asyncio.Runner
    versions: Iterator[str]

    def look(self) -> View:
        return View(KEYS, self.runner.run(self.store.list(KEYS.prefix)).entries)

    def next_version(self) -> str:
        """In a cycle: the one before stays loaded, the one before that has to go."""
        return next(self.versions)

    @contextmanager
    def troubled(self) -> Iterator[Stop]:
        """Processes may be stopped by name, and the gate be shut; when the block ends all is as it was."""
        stopped: set[str] = set()

        def stop(name: str, whether: bool) -> None:
            if whether and name not in stopped:
                assert self.fleet.signal(name, signal.SIGSTOP), f"{name} does not run"
                stopped.add(name)
            elif not whether and name in stopped:
                self.fleet.signal(name, signal.SIGCONT)
                stopped.discard(name)

        try:
            yield stop
        finally:
            for name in list(stopped):
                stop(name, False)
            self.gate.unlink(missing_ok=True)


def leader(view: View) -> tuple[str, int]:
    """Its name, and when it began to lead."""
    entry = view.entries.get(KEYS.leader)
    return (entry.value.decode(), entry.revision) if entry is not None else ("", 0)


def prepare(stage: Stage, load: Trial) -> Asked:
    """A rollout that cannot be over before the gate opens: one worker loads it before the other, and all that the first
    waits for is ``solo``, which is loaded last."""
    stage.gate.touch()
    asked = load.start(stage.next_version())

    def waits_for_solo() -> bool:
        record = stage.look().rollout(asked.identity)
        workers = record.workers.values() if record is not None and record.state == "preparing" else ()
        loading = [worker.detail for worker in workers if worker.state == "loading"]
        return len(loading) == 1 and all(part.startswith(SOLO) for part in loading[0].split(", "))

    wait_until(waits_for_solo, "the first worker has loaded everything but solo")
    return asked


@dataclass(frozen=True)
class Phase:
    """Where a rollout can be struck."""

    #: Starts a rollout and brings it there; or not, where a stopped process counts as gone before it comes to that.
    reach: Callable[[Stage, Trial, Stop], Asked]
    is_open: Callable[[View, Asked], bool]
    #: What the dead leader may have left.
    was_open: Callable[[View, Asked], bool]


def strike(stage: Stage, load: Trial, phase: Phase) -> tuple[Asked, str, float]:
    """Kills the leading controller in a phase; the rollout, whom, and when. A machine too slow for it tries again."""
    for _ in range(_TRIES):
        with stage.troubled() as stop:
            asked = phase.reach(stage, load, stop)
            view = stage.look()
            name, _ = leader(view)
            if phase.is_open(view, asked) and name:
                assert stage.fleet.signal(name, signal.SIGKILL), f"{name} does not run"
                at = time.monotonic()
                if phase.was_open(stage.look(), asked):
                    return asked, name, at
        load.finish(asked)
    raise AssertionError(f"the phase was missed {_TRIES} times")


def _reach_pending(stage: Stage, load: Trial, stop: Stop) -> Asked:
    """The leader is stopped, so nobody takes up what another controller writes."""
    name, _ = leader(stage.look())
    stop(name, True)
    (other,) = (part for part in stage.fleet.of(CONTROLLER) if part.name != name)
    api = ControlApi([other.address])
    try:
        changes = dict.fromkeys(MODELS, stage.next_version())
        return load.ask(lambda: api.start_rollout(changes, "strict"))
    finally:
        api.close()


def _reach_preparing(stage: Stage, load: Trial, stop: Stop) -> Asked:
    return prepare(stage, load)


def _reach_canary(stage: Stage, load: Trial, stop: Stop) -> Asked:
    """For good: nobody sends a million requests."""
    rule = {"steps": [0.5], "min_samples": 10**6, "sticky": False}
    asked = load.start(stage.next_version(), canary=rule)
    wait_until(lambda: _is_tried(stage.look(), asked), "half of the traffic gets it")
    return asked


def _reach_announced(stage: Stage, load: Trial, stop: Stop) -> Asked:
    """A gateway does not answer."""
    asked = prepare(stage, load)
    stop("gw-1", True)
    stage.gate.unlink()
    _come_to(stage, asked, _is_announced)
    return asked


def _reach_holding(stage: Stage, load: Trial, stop: Stop) -> Asked:
    """Both gateways answer the announcement, one after the other; then only one is there to hold."""
    asked = _reach_announced(stage, load, stop)

    def comes(view: View, asked: Asked) -> bool:
        if _is_holding(view, asked):
            return True
        switch = view.switch
        answered = switch is not None and KEYS.acknowledgement(switch.identity, "gw-2") in view.entries
        stop("gw-2", answered)
        stop("gw-1", not answered)
        return False

    _come_to(stage, asked, comes)
    return asked


def _reach_draining(stage: Stage, load: Trial, stop: Stop) -> Asked:
    """Once all is prepared a worker is stopped: it cannot let go of the oldest version."""
    asked = _reach_announced(stage, load, stop)
    stop("cpu-1", True)
    stop("gw-1", False)
    _come_to(stage, asked, _in_state("draining"))
    return asked


def _come_to(stage: Stage, asked: Asked, holds: Callable[[View, Asked], bool]) -> None:
    """Until it holds, or cannot any more: who is stopped for longer than a lease is not heard of."""

    def settled() -> bool:
        view = stage.look()
        record = view.rollout(asked.identity)
        return holds(view, asked) or (record is not None and record.is_over) or not _heard_of(view) >= _EVERYBODY

    wait_until(settled, "the phase begins")


def _heard_of(view: View) -> set[str]:
    return {*view.gateways, *view.workers}


def _in_state(state: str) -> Callable[[View, Asked], bool]:
    def is_so(view: View, asked: Asked) -> bool:
        record = view.rollout(asked.identity)
        return record is not None and record.state == state

    return is_so


def _in_switch(*phases: str) -> Callable[[View, Asked], bool]:
    """In one of these phases, and not committed."""

    def is_so(view: View, asked: Asked) -> bool:
        switch = view.switch
        return switch is not None and switch.phase in phases and _in_state("switching")(view, asked)

    return is_so


def _is_tried(view: View, asked: Asked) -> bool:
    epoch = view.epoch
    shared = epoch is not None and all(epoch.models[name].canary is not None for name in MODELS)
    return shared and _in_state("canary")(view, asked)


_is_announced, _is_holding = _in_switch(ANNOUNCED), _in_switch(HOLDING)

PHASES = {
    "pending": Phase(_reach_pending, _in_state("pending"), _in_state("pending")),
    "preparing": Phase(_reach_preparing, _in_state("preparing"), _in_state("preparing")),
    "canary": Phase(_reach_canary, _is_tried, _is_tried),
    "announced": Phase(_reach_announced, _is_announced, _is_announced),
    # The gateways cancel a switch that is held for a second.
    "holding": Phase(_reach_holding, _is_holding, _in_switch(HOLDING, CANCELLED)),
    "draining": Phase(_reach_draining, _in_state("draining"), _in_state("draining")),
}
