"""A whole fleet on etcd: one member; then three, and the leading controller killed in every phase of a strict rollout.

Every phase is held open until it has been struck, by what a fleet may meet anyway: a load that takes its time, a
gateway or a worker that is stopped. Requests go on all the while, and the history is checked.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fleet_trial import Trial, trial, wait_until

from bench.control.control_api import ControlApi
from bench.control.etcd_cluster import EtcdCluster, loopback_members
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import MODELS, SOLO, write_repository, write_version
from bench.control.rollout_log import Asked
from bench.control.running_fleet import CONTROLLER
from isochrone.control.keys import Keys
from isochrone.control.records import ANNOUNCED, CANCELLED, HOLDING
from isochrone.control.view import View
from isochrone.store.base import Store
from isochrone.store.opening import open_store

pytestmark = pytest.mark.peers

VERSIONS = 6
#: Of the fleet that bench/control describes.
KEYS = Keys("proof")


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
    def stopped(self) -> Iterator[Callable[[str, bool], None]]:
        """Stops and resumes processes by name; none is left stopped."""
        stopped: set[str] = set()

        def stop(name: str, whether: bool = True) -> None:
            if whether != (name in stopped):
                assert self.fleet.signal(name, signal.SIGSTOP if whether else signal.SIGCONT)
                (stopped.add if whether else stopped.discard)(name)

        try:
            yield stop
        finally:
            for name in stopped:
                self.fleet.signal(name, signal.SIGCONT)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("fleet")
    gate = directory / "gate"
    repository = write_repository(directory / "models", VERSIONS)
    for version in range(1, VERSIONS + 1):
        write_version(repository, SOLO, version, held_by=gate)
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdCluster(directory / "etcd", loopback_members(3)))
        fleet = stack.enter_context(SupervisedFleet(directory / "fleet", repository, Shape(workers=2), etcd))
        runner = stack.enter_context(asyncio.Runner())
        store = open_store(etcd.url)
        stack.callback(lambda: runner.run(store.close()))
        versions = itertools.cycle([*map(str, range(2, VERSIONS + 1)), "1"])
        yield Stage(fleet, etcd, gate, store, runner, versions)


# The leading controller, in each phase.


def _leader(view: View) -> tuple[str, int]:
    """Its name, and when it began to lead."""
    entry = view.entries.get(KEYS.leader)
    return (entry.value.decode(), entry.revision) if entry is not None else ("", 0)


def _strike(stage: Stage) -> str:
    name, _ = _leader(stage.look())
    assert stage.fleet.signal(name, signal.SIGKILL), f"{name} does not run"
    return name


def _in_pending(stage: Stage, load: Trial, stop: Callable[[str, bool], None]) -> Asked:
    """The leader is stopped, so nobody takes up what another controller writes."""
    leader, _ = _leader(stage.look())
    stop(leader, True)
    (other,) = (part for part in stage.fleet.of(CONTROLLER) if part.name != leader)
    api = ControlApi([other.address])
    try:
        changes = dict.fromkeys(MODELS, stage.next_version())
        asked = load.ask(lambda: api.start_rollout(changes, "strict"))
    finally:
        api.close()
    _strike(stage)
    stop(leader, False)
    assert _state(stage, asked) == "pending"
    return asked


def _in_preparing(stage: Stage, load: Trial, stop: Callable[[str, bool], None]) -> Asked:
    stage.gate.touch()
    asked = load.start(stage.next_version())
    wait_until(lambda: _state(stage, asked) == "preparing", "it prepares")
    _strike(stage)
    assert _state(stage, asked) == "preparing"
    return asked


def _in_canary(stage: Stage, load: Trial, stop: Callable[[str, bool], None]) -> Asked:
    rule = {"steps": [0.5], "min_samples": 10**6, "sticky": False}
    asked = load.start(stage.next_version(), canary=rule)
    wait_until(lambda: _shares(stage), "half of the traffic gets it")
    _strike(stage)
    assert _state(stage, asked) == "canary"
    return asked


def _in_announced(stage: Stage, load: Trial, stop: Callable[[str, bool], None]) -> Asked:
    stop("gw-1", True)
    asked = load.start(stage.next_version())
    wait_until(lambda: _switch(stage) == ANNOUNCED, "it is announced")
    _strike(stage)
    assert _switch(stage) == ANNOUNCED
    return asked


def _in_holding(stage: Stage, load: Trial, stop: Callable[[str, bool], None]) -> Asked:
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


def _in_draining(stage: Stage, load: Trial, stop: Callable[[str, bool], None]) -> Asked:
    """Once all is prepared a worker is stopped: it cannot let go of the oldest version."""
    stop("gw-1", True)
    asked = load.start(stage.next_version())
    wait_until(lambda: _switch(stage) == ANNOUNCED, "it is announced")
    stop("cpu-1", True)
    stop("gw-1", False)
    wait_until(lambda: _state(stage, asked) == "draining", "it drains")
    _strike(stage)
    assert _state(stage, asked) == "draining"
    return asked


def _state(stage: Stage, asked: Asked) -> str:
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


@pytest.mark.parametrize("phase", PHASES)
def test_the_leading_controller_is_killed(stage: Stage, phase: str, tmp_path: Path) -> None:
    with trial(stage.fleet, tmp_path / "history") as load:
        # So that there is a version that has to go.
        load.finish(load.start(stage.next_version()))
        before = _leader(stage.look())
        with stage.stopped() as stop:
            asked = PHASES[phase](stage, load, stop)
            struck = time.monotonic()
        stage.gate.unlink(missing_ok=True)
        wait_until(lambda: _leader(stage.look())[1] > before[1], "another one leads")
        led = time.monotonic() - struck
        if phase == "canary":
            # Nobody has decided yet: that takes a million requests.
            stage.fleet.api.promote(asked.identity)
        load.finish(asked)
        over = time.monotonic() - struck
        load.finish(load.start(stage.next_version()))
    print(
        f"{before[0]} killed in {phase}: {_leader(stage.look())[0]} leads after {led:.2f} s, the rollout is done after "
        f"{over:.2f} s; {len(load.history)} requests, the longest {load.longest_ms():.0f} ms"
    )
