"""A whole fleet on etcd: the leading controller is killed in every phase of a strict rollout; etcd loses a member, then
all of them. Requests go on all the while, none fails, and the history of answers is checked.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from fleet_phases import PHASES, Stage, leader
from fleet_trial import SECONDS, Trial, trial, wait_until

from bench.control.etcd_cluster import EtcdCluster, loopback_members
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import MODELS, SOLO, write_repository, write_version
from bench.control.running_fleet import CONTROLLER
from isochrone.store.opening import open_store

pytestmark = pytest.mark.peers

VERSIONS = 6


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


@pytest.mark.parametrize("phase", PHASES)
def test_the_leading_controller_is_killed(stage: Stage, phase: str, tmp_path: Path) -> None:
    with trial(stage.fleet, tmp_path / "history") as load:
        # So that there is a version that has to go.
        load.finish(load.start(stage.next_version()))
        before = leader(stage.look())
        with stage.troubled() as stop:
            asked = PHASES[phase](stage, load, stop)
            struck = time.monotonic()
        wait_until(lambda: leader(stage.look())[1] > before[1], "another one leads")
        led = time.monotonic() - struck
        if phase == "canary":
            # Nobody has decided yet: that takes a million requests.
            stage.fleet.api.promote(asked.identity)
        load.finish(asked)
        over = time.monotonic() - struck
        load.finish(load.start(stage.next_version()))
    print(
        f"{before[0]} killed in {phase}: {leader(stage.look())[0]} leads after {led:.2f} s, the rollout is done after "
        f"{over:.2f} s; {len(load.history)} requests, the longest {load.longest_ms():.0f} ms"
    )


# etcd's members.


def _told(stage: Stage, what: str, load: Trial, over: float) -> None:
    print(
        f"{what}: the rollout is done after {over:.2f} s; {len(load.history)} requests, longest {load.longest_ms():.0f} ms"
    )


def test_the_leading_member_is_killed(stage: Stage, tmp_path: Path) -> None:
    with trial(stage.fleet, tmp_path / "history") as load:
        with stage.troubled():
            asked = prepare(stage, load)
            killed = stage.etcd.leader().name
            stage.etcd.kill(killed)
            struck = time.monotonic()
        load.finish(asked)
        over = time.monotonic() - struck
        stage.etcd.start(killed)
        stage.etcd.wait_ready(killed)
        load.finish(load.start(stage.next_version()))
    _told(stage, f"leading member {killed} killed", load, over)


@pytest.mark.parametrize("leads", [True, False], ids=["leading", "following"])
def test_a_member_is_stopped(stage: Stage, leads: bool, tmp_path: Path) -> None:
    first = stage.etcd.leader()
    name = next(member.name for member in stage.etcd.members if (member == first) is leads)
    with trial(stage.fleet, tmp_path / "history") as load:
        try:
            with stage.troubled():
                asked = prepare(stage, load)
                stage.etcd.stop(name)
                struck = time.monotonic()
            load.finish(asked)
            over = time.monotonic() - struck
        finally:
            stage.etcd.resume(name)
        stage.etcd.wait_ready(name)
        load.finish(load.start(stage.next_version()))
    _told(stage, f"{'leading' if leads else 'following'} member {name} stopped", load, over)


#: Longer than any lease.
AWAY_SECONDS = 8.0


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_the_whole_of_etcd_is_away(stage: Stage, how: str, tmp_path: Path) -> None:
    """Killed, it comes back with its leases; stopped, it finds all of them run out."""
    etcd = stage.etcd
    names = [member.name for member in etcd.members]
    with trial(stage.fleet, tmp_path / "history") as load, stage.troubled():
        asked = prepare(stage, load)
        try:
            for name in names:
                (etcd.kill if how == "killed" else etcd.stop)(name)
            away = time.monotonic()
            told = _controllers_tell_it(stage)
            until = away + AWAY_SECONDS
            wait_until(lambda: time.monotonic() > until, "it has been away for long enough")
        finally:
            for name in names:
                (etcd.start if how == "killed" else etcd.resume)(name)
        back = time.monotonic()
        followed = wait_until(lambda: all(_connected(stage)), "every controller follows it again")
        stage.gate.unlink()
        load.finish(asked)
        over = time.monotonic() - back
        load.finish(load.start(stage.next_version()))
    answered = [
        sum(1 for one in load.history if second <= one.started_ns / 1e9 - away < second + 1) for second in range(8)
    ]
    assert all(answered), answered
    print(
        f"all of etcd {how} for {back - away:.1f} s: told after {told:.2f} s, followed again {followed:.2f} s after it was "
        f"back, the rollout done after {over:.2f} s; answers in each second away {answered}, the longest took "
        f"{load.longest_ms():.0f} ms"
    )


def _connected(stage: Stage) -> list[bool]:
    addresses = [part.address for part in stage.fleet.of(CONTROLLER)]
    answers = [httpx.get(f"http://{address}/v1/status", timeout=SECONDS, trust_env=False) for address in addresses]
    return [bool(answer.json()["store"]["connected"]) for answer in answers]


def _controllers_tell_it(stage: Stage) -> float:
    """Every controller answers, says that the store is away, and takes no orders; seconds until all did."""
    took = wait_until(lambda: not any(_connected(stage)), "every controller knows that the store is away")
    for part in stage.fleet.of(CONTROLLER):
        status = subprocess.run(
            [sys.executable, "-m", "isochrone", "status", "--api", part.address],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        assert "the store is away" in status.stdout
        changes = {"changes": dict.fromkeys(MODELS, "1")}
        answer = httpx.post(f"http://{part.address}/v1/rollouts", json=changes, timeout=SECONDS, trust_env=False)
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    return took
