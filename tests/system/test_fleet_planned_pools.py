"""A planned pool with real processes: 20 models on 6 workers whose memory is too small for all of them on each."""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from planned_fleet_processes import PlannedFleet
from real_fleets import LIMIT, applied, ask, command, rewritten, small_fleet, until

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import MODELS, Service, write_model, write_repository
from bench.control.running_fleet import CONTROLLER, GATEWAY, WORKER

pytestmark = pytest.mark.long

MIB = 2**20
WORKERS, MEMORY = 6, 440
#: MiB by model: 1,760 in all, so that five of six workers with 440 have room for all of them, and not much more.
SIZES = {**dict.fromkeys(MODELS, 20), **{f"m{number:02}": 60 + 20 * (number % 6) for number in range(16)}}
#: States in the index of versions that hold memory.
HELD = ("READY", "LOADING", "UNLOADING")


def planned_fleet(
    directory: Path,
    workers: int = WORKERS,
    sizes: Mapping[str, int] = SIZES,
    memory: int = MEMORY,
    lease_seconds: float = Shape.lease_seconds,
) -> SupervisedFleet:
    """All models of ``sizes``, each with two versions."""
    write_repository(directory / "models", 2, Service(milliseconds=2.0))
    for name in sizes.keys() - set(MODELS):
        write_model(directory / "models", name, Service(milliseconds=1.0), versions=2)
    models = {name: {"memory": f"{size}MiB"} for name, size in sizes.items()}
    pool = {"replicas": "planned", "memory": f"{memory}MiB"}
    shape = Shape(workers, 1, 1, lease_seconds=lease_seconds, models=models, pool=pool)
    return PlannedFleet(directory / "fleet", directory / "models", shape)


def index_of(address: str) -> list[dict[str, str]]:
    request = urllib.request.Request(f"http://{address}/v2/repository/index", b"{}")
    with urllib.request.urlopen(request, timeout=5) as answer:
        return list(json.load(answer))


class MemoryWatch:
    """Reads the indexes of all workers again and again: what they hold may never exceed their memory."""

    def __init__(self, fleet: SupervisedFleet, sizes: Mapping[str, int] = SIZES, memory: int = MEMORY) -> None:
        self._sizes, self._memory = sizes, memory
        self._addresses = {part.name: part.address for part in fleet.of(WORKER)}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.reads = 0
        self.most = 0
        self.overcommitted: list[tuple[str, int, list[str]]] = []

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            for name, address in self._addresses.items():
                try:
                    rows = index_of(address)
                except OSError:
                    continue
                held = [row["name"] for row in rows if row.get("state") in HELD]
                size = sum(self._sizes[model] for model in held)
                self.reads += 1
                self.most = max(self.most, size)
                if size > self._memory:
                    self.overcommitted.append((name, size, held))


def unanswered(gateway: str) -> list[str]:
    return [model for model in SIZES if ask(gateway, model).status != 200]


def replicas(fleet: SupervisedFleet) -> dict[str, list[str]]:
    """By model: the workers that have it ready, by their own indexes."""
    found: dict[str, list[str]] = {}
    for part in fleet.of(WORKER):
        try:
            rows = index_of(part.address)
        except OSError:
            continue
        for row in rows:
            if row.get("state") == "READY":
                found.setdefault(row["name"], []).append(part.name)
    return found


@contextmanager
def no_restarts(fleet: SupervisedFleet) -> Iterator[None]:
    """The supervisor stands still: a killed process stays dead."""
    supervisor = psutil.Process(fleet.pid(fleet.of(CONTROLLER)[0].name)).parent()
    assert supervisor is not None
    supervisor.suspend()
    try:
        yield
    finally:
        supervisor.resume()


def test_twenty_models_on_six_workers_survive_the_loss_of_one(tmp_path: Path) -> None:
    with planned_fleet(tmp_path) as fleet, MemoryWatch(fleet) as watch:
        gateway = fleet.of(GATEWAY)[0].address
        until(lambda: not unanswered(gateway), "every model to answer")
        before = replicas(fleet)
        assert all(len(names) == 1 for names in before.values()), before
        assert before["chain"] == before["stage_a"] == before["stage_b"], "an ensemble is where its stages are"
        assert len({names[0] for names in before.values()}) == WORKERS, "every worker has a part"

        lost = max(fleet.of(WORKER), key=lambda part: sum(part.name in names for names in before.values())).name
        moved = {model for model, names in before.items() if names == [lost]}
        assert set(before) == set(SIZES)
        with no_restarts(fleet):
            pid = fleet.pid(lost)
            assert pid is not None
            psutil.Process(pid).send_signal(signal.SIGKILL)
            killed = time.monotonic()
            until(lambda: not unanswered(gateway), "every model to answer without the worker")
            back = time.monotonic() - killed
            after = replicas(fleet)
        assert {model for model in SIZES if after[model] != before[model]} == moved, "no other model moves"
        assert all(lost not in names for names in after.values())
        said = command(fleet, "events", "--json").said
        lease = fleet.shape.lease_seconds
        print(f"{len(moved)} models of {lost} answer again {back:.1f} s after the kill; lease {lease} s")
        counts = sorted(sum(part.name in names for names in before.values()) for part in fleet.of(WORKER))
        print(f"models by worker: {counts}")
        print(f"{watch.reads} indexes read; at most {watch.most} of {MEMORY} MiB held")
        assert "replica loads" in said
        assert "replicas lost" in said
    assert not watch.overcommitted
    assert watch.reads > 100


def test_a_model_that_needs_more_replicas_gets_them_and_versions_change_where_they_are(tmp_path: Path) -> None:
    with planned_fleet(tmp_path) as fleet, MemoryWatch(fleet) as watch:
        gateway = fleet.of(GATEWAY)[0].address
        until(lambda: not unanswered(gateway), "every model to answer")
        rewritten(fleet, lambda document: document["models"]["solo"].update(min_replicas=3))
        applied(fleet)
        until(lambda: len(replicas(fleet)["solo"]) == 3, "three replicas")
        rewritten(fleet, lambda document: document["models"]["solo"].update(version="2"))
        applied(fleet)
        until(lambda: ask(gateway, "solo").version == "2", "the new version")
        there = {
            part.name
            for part in fleet.of(WORKER)
            if any(row["name"] == "solo" and row.get("version") == "2" for row in index_of(part.address))
        }
        assert there == set(replicas(fleet)["solo"])
        assert len(there) == 3
    assert not watch.overcommitted


@contextmanager
def callers(gateway: str, *models: str) -> Iterator[dict[str, set[int]]]:
    """One caller of each model; the statuses of all answers, by model."""
    statuses: dict[str, set[int]] = {model: set() for model in models}
    over = threading.Event()

    def call(model: str) -> None:
        while not over.is_set():
            statuses[model].add(ask(gateway, model).status)

    threads = [threading.Thread(target=call, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        over.set()
        for thread in threads:
            thread.join(LIMIT)


def test_a_model_makes_room_for_a_rollout_under_requests(tmp_path: Path) -> None:
    large = ("solo", "x", "y")
    sizes = {**dict.fromkeys(MODELS, 1), **dict.fromkeys(large, 40)}
    with planned_fleet(tmp_path, 2, sizes, 100) as fleet, MemoryWatch(fleet, sizes, 100) as watch:
        gateway = fleet.of(GATEWAY)[0].address
        until(lambda: all(ask(gateway, model).status == 200 for model in large), "every model to answer")
        before = replicas(fleet)
        full = next(name for [name] in before.values() if sum(before[model] == [name] for model in large) == 2)
        changing, leaving = (model for model in large if before[model] == [full])
        with callers(gateway, *large) as statuses:
            rewritten(fleet, lambda document: document["models"][changing].update(version="2"))
            applied(fleet)
            until(lambda: ask(gateway, changing).version == "2", "the new version")
        assert replicas(fleet)[leaving] != [full]
        assert statuses == {model: {200} for model in large}
        said = command(fleet, "events", "--json").said
        assert "replica unloads" in said
    assert not watch.overcommitted


def test_a_pool_that_becomes_planned_keeps_what_it_has(tmp_path: Path) -> None:
    with small_fleet(tmp_path, Shape(2, 1, 1)) as fleet:
        gateway = fleet.of(GATEWAY)[0].address
        with callers(gateway, "solo") as statuses:
            rewritten(fleet, lambda document: document["pools"]["cpu"].update(replicas="planned"))
            assert "restart" not in applied(fleet).said
            time.sleep(2.0)
            addresses = [part.address for part in fleet.of(WORKER)]
            assert all({row["name"] for row in index_of(each) if row.get("state")} == set(MODELS) for each in addresses)
            # Drained, the worker gives its models away; each has another replica.
            assert command(fleet, "drain", fleet.of(WORKER)[0].name).status == 0
            until(lambda: not any(row.get("state") in HELD for row in index_of(addresses[0])), "the models to leave")
            rewritten(fleet, lambda document: document["pools"]["cpu"].update(replicas="all"))
            applied(fleet)
            until(
                lambda: {row["name"] for row in index_of(addresses[0]) if row.get("state") == "READY"} == set(MODELS),
                "all models on both workers",
            )
        assert statuses == {"solo": {200}}


def test_a_replica_stays_if_the_worker_of_its_replacement_is_killed(tmp_path: Path) -> None:
    """Right after the replacement is ready, before the leader may unload the old one."""
    large = ("solo", "x", "y")
    sizes = {**dict.fromkeys(MODELS, 1), **dict.fromkeys(large, 40)}
    with planned_fleet(tmp_path, 2, sizes, 100, lease_seconds=10.0) as fleet:
        gateway = fleet.of(GATEWAY)[0].address
        until(lambda: all(ask(gateway, model).status == 200 for model in large), "every model to answer")
        before = replicas(fleet)
        full = next(name for [name] in before.values() if sum(before[model] == [name] for model in large) == 2)
        changing, leaving = (model for model in large if before[model] == [full])
        (other,) = (part.name for part in fleet.of(WORKER) if part.name != full)
        pid = fleet.pid(other)
        assert pid is not None
        # The rollout has no room: the other model leaves.
        rewritten(fleet, lambda document: document["models"][changing].update(version="2"))
        assert command(fleet, "apply", str(fleet.file), "--yes", "--no-wait").status == 0
        until(lambda: other in replicas(fleet).get(leaving, ()), "the load of the move")
        time.sleep(1.0)
        with no_restarts(fleet):
            psutil.Process(pid).send_signal(signal.SIGKILL)
            killed = time.monotonic()
            while time.monotonic() - killed < 8.0:
                assert replicas(fleet).get(leaving) == [full], "its only replica"
                time.sleep(0.1)
            assert ask(gateway, leaving).status == 200
