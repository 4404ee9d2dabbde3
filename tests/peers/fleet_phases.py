"""A fleet on three members of etcd, and the ways into each phase of a strict rollout with its leader killed there.

A phase is held open until it has been struck, by what a fleet may meet anyway: a load that takes its time, a gateway or
a worker that is stopped. What the phase was is read from the store after the blow. Must never leave a process stopped.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet_trial import Trial, wait_until

from bench.control.control_api import ControlApi
from bench.control.etcd_cluster import EtcdCluster
from bench.control.fleet_run import SupervisedFleet
from bench.control.models import MODELS
from bench.control.rollout_log import Asked
from bench.control.running_fleet import CONTROLLER
from isochrone.control.keys import Keys
from isochrone.control.records import ANNOUNCED, CANCELLED, HOLDING
from isochrone.control.view import View
from isochrone.store.base import Store

#: Of the fleet that bench/control describes.
KEYS = Keys("proof")
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


def _strike(stage: Stage) -> str:
    name, _ = leader(stage.look())
    assert stage.fleet.signal(name, signal.SIGKILL), f"{name} does not run"
    return name


def _in_pending(stage: Stage, load: Trial, stop: Stop) -> Asked:
    """The leader is stopped, so nobody takes up what another controller writes."""
    name, _ = leader(stage.look())
    stop(name, True)
    (other,) = (part for part in stage.fleet.of(CONTROLLER) if part.name != name)
    api = ControlApi([other.address])
    try:
        changes = dict.fromkeys(MODELS, stage.next_version())
        asked = load.ask(lambda: api.start_rollout(changes, "strict"))
    finally:
        api.close()
    _strike(stage)
    assert state(stage, asked) == "pending"
    return asked


def prepare(stage: Stage, load: Trial) -> Asked:
    """A rollout that cannot be over before the gate opens."""
    stage.gate.touch()
    asked = load.start(stage.next_version())
    wait_until(lambda: state(stage, asked) == "preparing", "it prepares")
    return asked


def _in_preparing(stage: Stage, load: Trial, stop: Stop) -> Asked:
    asked = prepare(stage, load)
    _strike(stage)
    assert state(stage, asked) == "preparing"
    return asked


def _in_canary(stage: Stage, load: Trial, stop: Stop) -> Asked:
    rule = {"steps": [0.5], "min_samples": 10**6, "sticky": False}
    asked = load.start(stage.next_version(), canary=rule)
    wait_until(lambda: _shares(stage), "half of the traffic gets it")
    _strike(stage)
    assert state(stage, asked) == "canary"
    return asked


def _in_announced(stage: Stage, load: Trial, stop: Stop) -> Asked:
    stop("gw-1", True)
    asked = load.start(stage.next_version())
    wait_until(lambda: _switch(stage) == ANNOUNCED, "it is announced")
    _strike(stage)
    assert _switch(stage) == ANNOUNCED
    return asked


def _in_holding(stage: Stage, load: Trial, stop: Stop) -> Asked:
    """Both gateways answer the announcement, one after the other; then only one is there to hold."""
    stop("gw-1", True)
    asked = load.start(stage.next_version())

    def is_holding() -> bool:
        view = stage.look()
        switch = view.switch
        if switch is not None and switch.phase == HOLDING:
            return True
        answered = switch is not None and KEYS.acknowledgement(switch.identity, "gw-2") in view.entries
        stop("gw-2", answered)
        stop("gw-1", not answered)
        return False

    wait_until(is_holding, "it is held")
    before = stage.look().epoch
    _strike(stage)
    view = stage.look()
    assert _switch(stage) in (HOLDING, CANCELLED)
    assert before is not None
    assert view.epoch == before
    return asked


def _in_draining(stage: Stage, load: Trial, stop: Stop) -> Asked:
    """Once all is prepared a worker is stopped: it cannot let go of the oldest version."""
    stop("gw-1", True)
    asked = load.start(stage.next_version())
    wait_until(lambda: _switch(stage) == ANNOUNCED, "it is announced")
    stop("cpu-1", True)
    stop("gw-1", False)
    wait_until(lambda: state(stage, asked) == "draining", "it drains")
    _strike(stage)
    assert state(stage, asked) == "draining"
    return asked


def state(stage: Stage, asked: Asked) -> str:
    record = stage.look().rollout(asked.identity)
    return record.state if record is not None else ""


def _switch(stage: Stage) -> str:
    switch = stage.look().switch
    return switch.phase if switch is not None else ""


def _shares(stage: Stage) -> bool:
    epoch = stage.look().epoch
    return epoch is not None and all(epoch.models[name].canary is not None for name in MODELS)


PHASES = {
    "pending": _in_pending,
    "preparing": _in_preparing,
    "canary": _in_canary,
    "announced": _in_announced,
    "holding": _in_holding,
    "draining": _in_draining,
}
