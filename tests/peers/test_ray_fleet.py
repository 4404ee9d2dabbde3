"""A fleet on a Ray cluster of three nodes: nodes are lost under load, versions change, supervisors come and go.

The nodes have addresses of their own on the loopback interface; the store is a real etcd.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
import yaml
from fleet_trial import trial, wait_until

from bench.control.etcd_cluster import EtcdCluster, loopback_members
from bench.control.fleet_run import Shape
from bench.control.models import write_repository
from bench.engines.ray_cluster import RayNodes, loopback_places
from bench.engines.ray_fleet import EDGE, RayFleet

pytestmark = [pytest.mark.peers, pytest.mark.timeout(300)]

WORKERS = 4
#: Bytes of memory that one node says it has.
LIE = 80_000_000_000_000
#: Of waits for processes to start: Ray, etcd and a fleet share two cores.
SECONDS = 120.0


@contextmanager
def ray_fleet(directory: Path) -> Iterator[RayFleet]:
    """With workers on several nodes."""
    repository = write_repository(directory / "models", 3)
    places = loopback_places(3)
    with ExitStack() as stack:
        labels, memory = {places[0].name: EDGE}, {places[2].name: LIE}
        cluster = stack.enter_context(RayNodes(places, labels=labels, memory=memory))
        etcd = stack.enter_context(EtcdCluster(directory / "etcd", loopback_members(1)))
        shape = Shape(workers=WORKERS, gateways=2, controllers=2)
        yield stack.enter_context(RayFleet(directory / "fleet", repository, shape, cluster, etcd))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayFleet]:
    with ray_fleet(tmp_path_factory.mktemp("ray")) as fleet:
        yield fleet


def up(fleet: RayFleet, file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "isochrone", "up", str(file), "--state", str(file.parent / "state"), *words]
    return subprocess.run(
        command, env=fleet.cluster.environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def isochrone_logs(fleet: RayFleet, process: str) -> str:
    command = [sys.executable, "-m", "isochrone", "logs", process]
    done = subprocess.run(command, env=fleet.command_environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_workers_are_spread_and_a_strict_rollout_breaks_no_promise(fleet: RayFleet, tmp_path: Path) -> None:
    assert set(fleet.nodes_of_workers().values()) <= {each.address for each in fleet.cluster.places.values()}
    assert len(set(fleet.nodes_of_workers().values())) > 1
    with trial(fleet, tmp_path / "history") as load:
        load.finish(load.start("2"))
        load.finish(load.start("1"))


def test_a_node_is_stopped_and_comes_back(fleet: RayFleet, tmp_path: Path) -> None:
    node = _node_with_workers(fleet)
    address = fleet.cluster.places[node].address
    with trial(fleet, tmp_path / "history"):
        fleet.cluster.stop_node(node)
        try:
            wait_until(lambda: _moved(fleet, address), "the workers run on other nodes", SECONDS)
        finally:
            fleet.cluster.resume_node(node)
        # The processes that were replaced give way.
        wait_until(lambda: not fleet.cluster.processes_on(node), "none of them is left", SECONDS)
        assert _moved(fleet, address)


def test_processes_outlive_their_supervisor_and_the_next_one_adopts_them(fleet: RayFleet, tmp_path: Path) -> None:
    names = [*fleet.nodes_of_workers(), *fleet.parts]
    before = {name: fleet.pid(name) for name in names}
    with trial(fleet, tmp_path / "history"):
        fleet.kill_supervisor()
        wait_until(lambda: fleet.capacity() == WORKERS, "all workers serve", SECONDS)
        told = fleet.log_path.stat().st_size
        fleet.start_supervisor()
        wait_until(lambda: b"is up:" in fleet.log_path.read_bytes()[told:], "the fleet is adopted", SECONDS)
    assert {name: fleet.pid(name) for name in names} == before


def test_one_supervisor_at_a_time_and_one_that_was_paused_gives_way(fleet: RayFleet, tmp_path: Path) -> None:
    paused = fleet.supervisor
    assert paused is not None
    # In another directory, as on another machine: the lock of the first one is not seen.
    copy = tmp_path / "fleet.yaml"
    copy.write_text(fleet.file.read_text())
    done = up(fleet, copy, "--engine", "ray", "--address", fleet.cluster.address)
    assert done.returncode == 1
    assert f"this fleet is up already, by process {paused.pid} on" in done.stderr
    names = [*fleet.nodes_of_workers(), *fleet.parts]
    before = {name: fleet.pid(name) for name in names}
    with trial(fleet, tmp_path / "history"):
        paused.send_signal(signal.SIGSTOP)
        try:
            told = fleet.log_path.stat().st_size
            fleet.start_supervisor("other-state")
            wait_until(lambda: b"is up:" in fleet.log_path.read_bytes()[told:], "the fleet is adopted", SECONDS)
        finally:
            paused.send_signal(signal.SIGCONT)
        assert paused.wait(SECONDS) == 1
        assert "gave way to process" in fleet.log_path.read_text()
        wait_until(lambda: fleet.capacity() == WORKERS, "all workers serve", SECONDS)
    assert {name: fleet.pid(name) for name in names} == before


def test_a_pool_that_no_node_can_meet_waits_and_says_why(fleet: RayFleet) -> None:
    document = yaml.safe_load(yaml.safe_dump(fleet.document))
    document["pools"]["gpu"] = {"gpus": 1, "node_labels": {"accelerator": "h200"}}
    document["models"] = {name: {**model, "pools": ["cpu"]} for name, model in document["models"].items()}
    fleet.api.apply(yaml.safe_dump(document), str(fleet.file.parent))
    reason = "waits: no Ray node has cpus: 1, gpus: 1 and label accelerator=h200"

    def waits() -> bool:
        return {each["name"]: each.get("how") for each in fleet.api.status()["processes"]}.get("gpu-1") == reason

    wait_until(waits, "the status says why", SECONDS)
    wait_until(lambda: f"worker gpu-1 {reason}" in fleet.log_path.read_text(), "the supervisor says why", SECONDS)
    fleet.api.apply(yaml.safe_dump(fleet.document), str(fleet.file.parent), retire=True)
    wait_until(lambda: not fleet.api.status()["processes"], "nothing waits any more", SECONDS)
    assert fleet.capacity() == WORKERS


def test_a_node_that_lies_about_its_memory_is_named(fleet: RayFleet) -> None:
    document = yaml.safe_load(yaml.safe_dump(fleet.document))
    document["pools"]["large"] = {"cpus": 0.5, "resources": {"memory": LIE // 2}}
    document["models"] = {name: {**model, "pools": ["cpu"]} for name, model in document["models"].items()}
    fleet.api.apply(yaml.safe_dump(document), str(fleet.file.parent))
    liar = fleet.cluster.places["node-3"].address
    told = re.compile(
        rf"waits: Ray node {re.escape(liar)} has [\d,]+ MB of the 40,000,000 MB of memory that Ray counts on"
    )

    def how() -> str:
        return str({each["name"]: each.get("how") for each in fleet.api.status()["processes"]}.get("large-1"))

    wait_until(lambda: told.fullmatch(how()), "the status says why", SECONDS)
    assert not [each for each in fleet.cluster.processes_on("node-3") if "large-1" in each.cmdline()]
    fleet.api.apply(yaml.safe_dump(fleet.document), str(fleet.file.parent), retire=True)
    wait_until(lambda: not fleet.api.status()["processes"], "nothing waits any more", SECONDS)
    assert fleet.capacity() == WORKERS


def test_groups_are_placed_together_and_apart_and_one_that_dies_harms_no_other(fleet: RayFleet) -> None:
    document = yaml.safe_load(yaml.safe_dump(fleet.document))
    document["pools"] |= {
        "near": {"workers": 2, "cpus": 0.5, "placement": "together"},
        "far": {"workers": 3, "cpus": 0.5, "placement": "apart"},
        "bad": {"cpus": 0.5, "arguments": ["--cache-config", "local,size=-1"]},
    }
    document["models"] = {name: {**model, "pools": ["cpu"]} for name, model in document["models"].items()}
    fleet.api.apply(yaml.safe_dump(document), str(fleet.file.parent))
    there = ("near-1", "near-2", "far-1", "far-2", "far-3")
    wait_until(lambda: fleet.nodes_of_workers().keys() >= {*there}, "the groups are placed", SECONDS)
    nodes = fleet.nodes_of_workers()
    assert nodes["near-1"] == nodes["near-2"]
    assert len({nodes["far-1"], nodes["far-2"], nodes["far-3"]}) == 3

    def dead() -> dict[str, str]:
        return {each["name"]: each.get("error", "") for each in fleet.api.status()["processes"]}

    def logged() -> list[str]:
        return isochrone_logs(fleet, "bad-1").strip().splitlines()

    wait_until(lambda: "size=-1" in dead().get("bad-1", ""), "the status has its last line", SECONDS)
    # The process is started again and again, and the log of a new start is empty at first.
    wait_until(lambda: logged()[-1:] == [dead()["bad-1"]], "its log ends with that line", SECONDS)
    fleet.api.apply(yaml.safe_dump(fleet.document), str(fleet.file.parent), retire=True)
    wait_until(lambda: len(fleet.nodes_of_workers()) == WORKERS, "the groups are gone", SECONDS)
    wait_until(lambda: not fleet.api.status()["processes"], "nothing is reported any more", SECONDS)


def test_an_actor_that_dies_takes_its_process_along_and_ray_starts_both_again(fleet: RayFleet, tmp_path: Path) -> None:
    worker = next(name for name in fleet.nodes_of_workers())
    before = fleet.pid(worker)
    assert before is not None
    with trial(fleet, tmp_path / "history"):
        actor = psutil.Process(before).parent()
        assert actor is not None
        actor.kill()
        wait_until(lambda: fleet.pid(worker) not in (None, before), "it runs again", SECONDS)
        wait_until(lambda: fleet.capacity() == WORKERS, "all workers serve", SECONDS)
    assert not psutil.pid_exists(before)


def test_a_store_in_a_file_is_rejected_on_several_machines(fleet: RayFleet, tmp_path: Path) -> None:
    document = {**fleet.document, "store": {"url": "sqlite:state/fleet.db"}}
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(document))
    done = up(fleet, tmp_path / "fleet.yaml", "--engine", "ray", "--address", fleet.cluster.address)
    assert done.returncode == 1
    assert "store.url: expected etcd:http://HOST:2379, since the Ray cluster has 3 machines" in done.stderr


def test_a_raylet_is_killed(tmp_path: Path) -> None:
    # A fleet of its own: where the workers of the other one are by now is not known.
    with ray_fleet(tmp_path) as fleet:
        node = _node_with_workers(fleet)
        address = fleet.cluster.places[node].address
        with trial(fleet, tmp_path / "history"):
            fleet.cluster.kill_raylet(node)
            wait_until(lambda: _moved(fleet, address), "the workers run on other nodes", SECONDS)
        fleet.cluster.remove(node)


def _node_with_workers(fleet: RayFleet) -> str:
    """A node that has no gateway."""
    used = set(fleet.nodes_of_workers().values())
    return next(
        name for name, place in fleet.cluster.places.items() if place != fleet.cluster.head and place.address in used
    )


def _moved(fleet: RayFleet, address: str) -> bool:
    return address not in fleet.nodes_of_workers().values() and fleet.capacity() == WORKERS
