"""A whole fleet on etcd: the leading controller is killed in every phase of a strict rollout; etcd loses a member, then
all of them. Requests go on all the while, none fails, and the history of answers is checked.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from fleet_phases import PHASES, Stage, leader, prepare, strike
from fleet_trial import SECONDS, Trial, isochrone, trial, wait_until

from bench.control.etcd_cluster import EtcdCluster, loopback_members
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import CHAIN, MODELS, SOLO, write_repository, write_version
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
        _, since = leader(stage.look())
        asked, killed, struck = strike(stage, load, PHASES[phase])
        wait_until(lambda: leader(stage.look())[1] > since, "another one leads")
        led = time.monotonic() - struck
        if phase == "canary":
            # Nobody has decided yet: that takes a million requests.
            stage.fleet.api.promote(asked.identity)
        load.finish(asked)
        over = time.monotonic() - struck
        load.finish(load.start(stage.next_version()))
    leads = leader(stage.look())[0]
    _tell(f"{killed} killed in {phase}: {leads} leads after {led:.2f} s", load, over)


# etcd's members.


def _tell(what: str, load: Trial, over: float) -> None:
    requests = f"{len(load.history)} requests, the longest {load.longest_ms():.0f} ms"
    print(f"{what}: the rollout is done after {over:.2f} s; {requests}")


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
    _tell(f"leading member {killed} killed", load, over)


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
    _tell(f"{'leading' if leads else 'following'} member {name} stopped", load, over)


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
        f"all of etcd {how} for {back - away:.1f} s: told after {told:.2f} s, followed again {followed:.2f} s after "
        f"it was back, the rollout done after {over:.2f} s; answers in each second away {answered}, the longest took "
        f"{load.longest_ms():.0f} ms"
    )


def _connected(stage: Stage) -> list[bool]:
    addresses = [part.address for part in stage.fleet.of(CONTROLLER)]
    answers = [httpx.get(f"http://{address}/v1/status", timeout=SECONDS, trust_env=False) for address in addresses]
    return [bool(answer.json()["store"]["connected"]) for answer in answers]


def _controllers_tell_it(stage: Stage) -> float:
    """Every controller answers and says that the store is away, and takes no orders; seconds until all did."""
    took = wait_until(lambda: not any(_connected(stage)), "every controller knows that the store is away")
    first, *_ = parts = stage.fleet.of(CONTROLLER)
    for part in parts:
        assert "the store is unreachable" in isochrone("status", "--api", part.address)
    changes = {"changes": dict.fromkeys(MODELS, "1")}
    answer = httpx.post(f"http://{first.address}/v1/rollouts", json=changes, timeout=SECONDS, trust_env=False)
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    return took


# One member.


def test_a_fleet_on_one_member(tmp_path: Path) -> None:
    """By the commands that people use, asked of either controller."""
    repository = write_repository(tmp_path / "models", 2)
    shape = Shape(workers=1, gateways=1)
    with (
        EtcdCluster(tmp_path / "etcd", loopback_members(1)) as etcd,
        SupervisedFleet(tmp_path / "fleet", repository, shape, etcd) as fleet,
    ):
        first, second = (part.address for part in fleet.of(CONTROLLER))
        assert f"store {etcd.url}" in isochrone("status", "--api", second)
        changes = [f"{model}=2" for model in MODELS]
        isochrone("rollout", "start", *changes, "--cutover", "strict", "--api", first)
        assert fleet.api.versions() == dict.fromkeys(MODELS, "2")
        isochrone("rollout", "rollback", CHAIN, "--api", second)
        assert fleet.api.versions() == dict.fromkeys(MODELS, "1")
        broken = repository / SOLO / "3"
        broken.mkdir()
        (broken / "model.py").write_text("raise RuntimeError('no such weights')")
        told = isochrone("rollout", "start", f"{SOLO}=3", "--api", first, status=1)
        assert "not every worker could load it: worker cpu-1" in " ".join(told.split())
        assert fleet.api.versions() == dict.fromkeys(MODELS, "1")
