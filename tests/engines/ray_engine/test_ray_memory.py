"""Nodes that have less memory than Ray counts on: how it is measured, and what the engine does about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fake_ray import FakeCluster

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.needs import Needs
from isochrone.engines.ray import engine as engine_module
from isochrone.engines.ray.engine import RayEngine
from isochrone.engines.ray.memory import available_memory, memory_refusal

SECONDS = 100.0
NEEDS = Needs(1.0, resources=(("memory", 8e9),))
SPEC = ProcessSpec("w1", "worker", ("serve", "--name", "w1"), "cpu", NEEDS)
SHORT = "has 3,000 MB of the 8,000 MB of memory that Ray counts on"


def test_a_process_is_refused_where_it_has_too_little() -> None:
    assert memory_refusal(NEEDS, 3_000_000_000) == SHORT
    assert memory_refusal(NEEDS, 8_000_000_000) == ""


def test_without_a_need_or_a_figure_nothing_is_refused() -> None:
    assert memory_refusal(Needs(1.0), 0) == ""
    assert memory_refusal(NEEDS, None) == ""


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A root directory with a machine of 10 MB available."""
    texts = {
        "proc/meminfo": "MemTotal: 20480 kB\nMemFree: 1 kB\nMemAvailable: 10240 kB\n",
        "proc/self/cgroup": cgroup,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cgroup(place: str, limit: str, used: int, cache: int) -> dict[str, str]:
    return {
        f"{place}memory.max": limit,
        f"{place}memory.current": str(used),
        f"{place}memory.stat": f"anon 5\nfile 9\ninactive_file {cache}\n",
    }


MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("path", "files", "megabytes"),
    [
        ("0::/\n", {}, 10),
        ("0::/a\n", cgroup("a/", "max\n", 1, 0), 10),
        # The cache of files is given up when memory is short.
        ("0::/a\n", cgroup("a/", f"{4 * MEGABYTE}\n", 3 * MEGABYTE, MEGABYTE), 2),
        # A limit further up counts as well.
        ("0::/a/b\n", cgroup("a/b/", "max\n", 1, 0) | cgroup("a/", f"{4 * MEGABYTE}\n", MEGABYTE, 0), 3),
        # In a container the path is that of the host.
        ("0::/host/pod\n", cgroup("", f"{4 * MEGABYTE}\n", MEGABYTE, 0), 3),
        ("0::/a\n", cgroup("a/", f"{MEGABYTE}\n", 3 * MEGABYTE, 0), 0),
        (
            "5:cpu:/x\n4:memory:/a\n0::/\n",
            {
                "memory/a/memory.limit_in_bytes": f"{6 * MEGABYTE}\n",
                "memory/a/memory.usage_in_bytes": f"{2 * MEGABYTE}\n",
                "memory/a/memory.stat": "inactive_file 7\ntotal_inactive_file 0\n",
            },
            4,
        ),
    ],
)
def test_the_tightest_limit_counts(tmp_path: Path, path: str, files: dict[str, str], megabytes: int) -> None:
    assert available_memory(machine(tmp_path, path, files)) == megabytes * MEGABYTE


def test_nothing_is_known_without_proc(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None


def test_this_machine_has_memory() -> None:
    assert (available_memory() or 0) > 0


async def until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < ends
        await asyncio.sleep(0.005)


@asynccontextmanager
async def engine_on(refusals: dict[str, str]) -> AsyncIterator[tuple[RayEngine, FakeCluster]]:
    cluster = FakeCluster()
    cluster.refusals = refusals
    engine = RayEngine(cluster)
    try:
        yield engine, cluster
    finally:
        await engine.close()


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_NODES_SECONDS", 0.01)


def test_a_process_moves_to_a_node_that_has_the_memory() -> None:
    async def run() -> None:
        async with engine_on({"liar": SHORT, "honest": ""}) as (engine, cluster):
            await engine.start(SPEC)
            await until(lambda: engine.running()["w1"].pid)
            assert [actor.node for actor in cluster.made] == ["liar", "honest"]
            running = engine.running()["w1"]
            assert (running.host, running.waits) == ("honest.local", "")

    asyncio.run(run())


def test_without_another_node_it_waits_there_and_says_why() -> None:
    async def run() -> None:
        async with engine_on({"liar": SHORT}) as (engine, cluster):
            await engine.start(SPEC)
            await until(lambda: engine.running()["w1"].waits == f"Ray node liar.local {SHORT}")
            await asyncio.sleep(0.1)
            assert len(cluster.made) == 1
            # Others may have ended since: its actor starts it.
            cluster.actors["w1"].refusal = ""
            cluster.actors["w1"].changed.set()
            await until(lambda: engine.running()["w1"].pid)
            assert engine.running()["w1"].waits == ""

    asyncio.run(run())


def test_two_nodes_that_lie_are_both_named() -> None:
    async def run() -> None:
        async with engine_on({"one": SHORT, "two": SHORT}) as (engine, cluster):
            await engine.start(SPEC)
            await until(lambda: "two.local" in engine.running()["w1"].waits)
            assert engine.running()["w1"].waits == f"Ray node one.local {SHORT}; Ray node two.local {SHORT}"
            await asyncio.sleep(0.1)
            assert len(cluster.made) == 2

    asyncio.run(run())


def test_a_refusal_does_not_last_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_AVOIDED_SECONDS", 0.2)

    async def run() -> None:
        async with engine_on({"one": SHORT, "two": SHORT}) as (engine, cluster):
            await engine.start(SPEC)
            await until(lambda: len(cluster.made) >= 2)
            cluster.refusals["one"] = ""
            await until(lambda: engine.running()["w1"].pid)
            assert engine.running()["w1"].host == "one.local"

    asyncio.run(run())


def test_a_process_of_a_group_stays_with_its_group() -> None:
    async def run() -> None:
        async with engine_on({"liar": SHORT, "honest": ""}) as (engine, cluster):
            needs = Needs(1.0, resources=NEEDS.resources, placement="apart", group="cpu")
            await engine.start(ProcessSpec("w1", "worker", ("serve",), "cpu", needs))
            await until(lambda: engine.running()["w1"].waits)
            await asyncio.sleep(0.1)
            assert [actor.node for actor in cluster.made] == ["liar"]

    asyncio.run(run())


def test_a_process_that_waits_for_memory_can_be_stopped() -> None:
    async def run() -> None:
        async with engine_on({"liar": SHORT}) as (engine, cluster):
            await engine.start(SPEC)
            await until(lambda: engine.running()["w1"].waits)
            await engine.stop("w1", 1.0)
            assert (engine.running(), cluster.actors) == ({}, {})

    asyncio.run(run())
