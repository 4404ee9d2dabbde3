"""The supervisor with a real store and real, small processes. They register as the real ones do, through the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pytest

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord, ProcessRecord, WorkerRecord
from isochrone.control.state.records import (
    SUPERVISOR,
    Assignment,
    EpochRecord,
    EventRecord,
    FleetRecord,
    KeptPool,
    ReconciledRecord,
)
from isochrone.control.state.view import View
from isochrone.engines.base import Exit
from isochrone.engines.local.engine import LocalEngine
from isochrone.engines.local.log_files import LogFiles
from isochrone.engines.supervision.desired import desired_processes
from isochrone.engines.supervision.supervisor import Supervisor
from isochrone.store.base import Compare, Delete, Entry, Outcome, Put, Snapshot, StoreUnavailable
from isochrone.store.sqlite.store import SqliteStore

SECONDS = 100.0
KEYS = Keys("plant")
SLEEPS = "import time; time.sleep(600)"
#: Says, as a worker does, that nothing is in flight; its port is in its log.
IDLE_WORKER = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Idle(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("endpoint-load-metrics", "TEXT named_metrics.in_flight=0.0")
        self.end_headers()
server = HTTPServer(("127.0.0.1", 0), Idle)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class CuttableStore(SqliteStore):
    """Away whenever the test says so."""

    away = False

    def _probe(self) -> None:
        if self.away:
            raise StoreUnavailable("cut off")

    async def list(self, prefix: str) -> Snapshot:
        self._probe()
        return await super().list(prefix)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete], *, durable: bool = True
    ) -> Outcome:
        self._probe()
        return await super().transact(compares, operations)


class Plant:
    """A supervisor at work, and its store."""

    def __init__(self, directory: Path) -> None:
        self.store = CuttableStore("sqlite:test.db", directory / "test.db")
        self.logs = LogFiles(directory / "logs")
        self.engine = LocalEngine(self.logs, (sys.executable, "-c"))
        self.lines: list[str] = []
        #: What it says while it starts; how often depends on how fast the machine is.
        self.waiting: list[str] = []
        self.ends: list[Exit] = []
        self.stopping, self.hurry = asyncio.Event(), asyncio.Event()
        self.supervisor = Supervisor(
            self.engine,
            self.store,
            KEYS,
            lambda line: (self.waiting if line.startswith("waiting for") else self.lines).append(line),
            self.ends.append,
            desired=_desired,
            before=("before",),
            last_lines=self.logs.last_lines,
        )
        self.work: asyncio.Task[None] | None = None

    async def want(self, *specs: ProcessSpec) -> None:
        record = FleetRecord(1, "", {"processes": [[each.name, each.role, *each.arguments] for each in specs]})
        await self.store.transact((), (Put(KEYS.fleet, encode(record)),))

    def begin(self) -> None:
        self.work = asyncio.create_task(self.supervisor.run(self.stopping, self.hurry))

    async def until(self, condition: Callable[[], object]) -> None:
        ends = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < ends, self.lines
            assert self.work is not None
            assert not self.work.done(), self.work
            await asyncio.sleep(0.01)

    def pid(self, name: str) -> int:
        running = self.engine.running().get(name)
        return running.pid if running is not None else 0

    async def register_gateway(self, name: str, incarnation: str) -> None:
        await self.until(lambda: self.pid(name))
        record = GatewayRecord(name, "127.0.0.1", 8000, incarnation=incarnation, pid=self.pid(name))
        await self.store.transact(
            (),
            (
                Put(KEYS.gateway(name), encode(record)),
                Put(KEYS.known_gateway(name), incarnation.encode()),
                Put(KEYS.gateway_set, incarnation.encode()),
            ),
        )

    async def register_worker(self, name: str) -> None:
        await self.until(lambda: self.logs.last_lines(name))
        port = int(self.logs.last_lines(name)[0])
        record = WorkerRecord(name, "127.0.0.1", port, port, pool="cpu", pid=self.pid(name))
        await self.store.transact((), (Put(KEYS.worker(name), encode(record)),))

    def has(self, key: str) -> bool:
        return key in self.supervisor.mirror.entries


def _desired(record: FleetRecord, view: View, sizes: Mapping[str, int]) -> dict[str, ProcessSpec]:
    found = [
        ProcessSpec(name, role, tuple(words), "cpu" if role == "worker" else "")
        for name, role, *words in record.spec["processes"]
    ]
    return {each.name: each for each in found}


@contextlib.asynccontextmanager
async def plant(directory: Path) -> AsyncIterator[Plant]:
    made = Plant(directory)
    try:
        yield made
    finally:
        made.store.away = False
        made.stopping.set()
        made.hurry.set()
        if made.work is not None:
            await made.work
        await made.store.close()


def controller(name: str = "c") -> ProcessSpec:
    return ProcessSpec(name, "controller", (SLEEPS,))


def gateway(name: str = "gw", code: str = SLEEPS) -> ProcessSpec:
    return ProcessSpec(name, "gateway", (code,))


def worker(name: str, code: str = IDLE_WORKER) -> ProcessSpec:
    return ProcessSpec(name, "worker", (code,), "cpu")


def test_a_fleet_comes_up_is_told_of_and_is_stopped_in_order(tmp_path: Path) -> None:
    async def run() -> None:
        async with plant(tmp_path) as it:
            await it.want(gateway(), worker("w1"), controller())
            it.begin()
            await it.register_worker("w1")
            await it.register_gateway("gw", "a")
            await it.until(lambda: len(it.lines) == 3)
            assert not it.supervisor.up.is_set()
            await it.store.transact((), (Put(KEYS.epoch, encode(EpochRecord(1))),))
            await it.until(it.supervisor.up.is_set)
            assert sorted(it.lines[:3]) == ["controller c ready", "gateway gw ready", "worker w1 ready"]
            assert it.lines[3].startswith("models committed: epoch 1")
            it.stopping.set()
            assert it.work is not None
            await asyncio.wait_for(it.work, SECONDS)
            assert [each.spec.name for each in it.ends] == ["gw", "w1", "c"]
            assert {each.status for each in it.ends} == {-signal.SIGTERM}
            assert it.lines[4:] == ["stopping gw", "stopping w1", "stopping c"]

    asyncio.run(run())


def test_a_worker_that_is_no_longer_wanted_is_drained_first_and_nobody_else_is_touched(tmp_path: Path) -> None:
    async def run() -> None:
        async with plant(tmp_path) as it:
            await it.want(worker("w1"), worker("w2"))
            it.begin()
            for name in ("w1", "w2"):
                await it.register_worker(name)
            await it.until(lambda: len(it.lines) == 2)
            kept = it.pid("w1")
            seen: list[str] = []
            it.supervisor.mirror.on_change.append(
                lambda: (
                    seen.append(f"drained, running: {'w2' in it.engine.running()}")
                    if it.has(KEYS.drain("w2"))
                    else None
                )
            )
            await it.want(worker("w1"))
            await it.until(lambda: "w2" not in it.engine.running())
            assert seen[0] == "drained, running: True"
            assert it.ends[0].again_in is None
            # The next process of that name should get work.
            await it.until(lambda: not it.has(KEYS.drain("w2")))
            assert it.pid("w1") == kept

    asyncio.run(run())


def test_the_death_of_a_gateway_is_told_and_its_successor_is_known(tmp_path: Path) -> None:
    async def run() -> None:
        async with plant(tmp_path) as it:
            await it.want(gateway())
            it.begin()
            await it.register_gateway("gw", "a")
            await it.until(lambda: it.lines)
            first = it.pid("gw")
            os.kill(first, signal.SIGKILL)
            await it.until(lambda: not it.has(KEYS.known_gateway("gw")))
            assert it.supervisor.mirror.entries[KEYS.gateway_set].value == b"gw died"
            await it.until(lambda: it.pid("gw") not in (0, first))
            assert it.supervisor.restarts_of("gw") == 1
            await it.register_gateway("gw", "b")
            await it.until(lambda: it.lines.count("gateway gw ready") == 2)
            assert it.supervisor.mirror.entries[KEYS.known_gateway("gw")].value == b"b"

    asyncio.run(run())


def test_the_death_of_a_worker_is_in_the_events_with_its_signal(tmp_path: Path) -> None:
    async def run() -> None:
        async with plant(tmp_path) as it:
            await it.want(gateway(), worker("w1"), worker("w2", "raise SystemExit(3)"))
            it.begin()
            await it.register_worker("w1")
            await it.register_gateway("gw", "a")
            await it.until(lambda: "worker w1 ready" in it.lines and "gateway gw ready" in it.lines)
            pids = it.pid("w1"), it.pid("gw")
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            reported = it.supervisor.view.events
            await it.until(lambda: {"w1", "gw", "w2"} <= {record.about for _, record in reported()})
            found = {record.about: record for _, record in reported()}
            assert (found["w1"].who, found["w1"].what) == ("supervisor", "worker died")
            assert found["w1"].detail.startswith(
                f"process {pids[0]} was ended by signal 9 (SIGKILL); starting it again"
            )
            assert found["w2"].what == "worker died"
            assert "ended with status 3" in found["w2"].detail
            assert [record.what for _, record in reported() if record.about == "gw"] == ["gateway died"]
            # A process that is stopped because it is no longer desired has not died.
            before = len([record for _, record in reported() if record.about == "gw"])
            await it.until(lambda: it.pid("gw") not in (0, pids[1]))
            await it.want(worker("w1"))
            await it.until(lambda: "gw" not in it.engine.running())
            assert len([record for _, record in reported() if record.about == "gw"]) == before

    asyncio.run(run())


def test_while_the_store_is_away_nothing_stops_and_the_dead_come_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with plant(tmp_path) as it:
            await it.want(gateway(), worker("w1"))
            it.begin()
            await it.register_worker("w1")
            await it.register_gateway("gw", "a")
            await it.until(lambda: len(it.lines) == 2)
            kept, killed = it.pid("w1"), it.pid("gw")
            it.store.away = True
            os.kill(killed, signal.SIGKILL)
            await it.until(lambda: it.pid("gw") not in (0, killed))
            assert it.pid("w1") == kept
            # What the death leaves to be written is written as soon as it can be.
            assert it.has(KEYS.known_gateway("gw"))
            it.store.away = False
            await it.until(lambda: not it.has(KEYS.known_gateway("gw")))

    asyncio.run(run())


def test_changed_workers_are_replaced_one_after_the_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with plant(tmp_path) as it:
            names = ("w1", "w2")
            await it.want(*(worker(name) for name in names))
            it.begin()
            for name in names:
                await it.register_worker(name)
            await it.until(lambda: len(it.lines) == 2)
            old = {name: it.pid(name) for name in names}
            restarts: list[tuple[str, ...]] = []
            it.supervisor.mirror.on_change.append(
                lambda: restarts.append(found.processes) if (found := it.supervisor.view.restarts) else None
            )
            await it.want(*(worker(name, IDLE_WORKER + "# changed") for name in names))
            await it.until(lambda: it.pid("w1") not in (0, old["w1"]))
            # The second one waits until the first one serves.
            assert it.pid("w2") == old["w2"]
            assert not it.has(KEYS.drain("w2"))
            await it.register_worker("w1")
            await it.until(lambda: it.pid("w2") not in (0, old["w2"]))
            assert [each.spec.name for each in it.ends] == ["w1", "w2"]
            # What is still to come can be read all the time.
            await it.register_worker("w2")
            await it.until(lambda: restarts[-1:] == [()] and ("w2",) in restarts)
            assert [each for each, _ in groupby(restarts)] in ([(), names, ("w2",), ()], [names, ("w2",), ()])

    asyncio.run(run())


def test_what_a_supervisor_before_left_in_the_store_is_cleared_up(tmp_path: Path) -> None:
    async def run() -> None:
        async with plant(tmp_path) as it:
            await it.want(worker("w1"))
            drains = [
                Put(KEYS.drain(name), encode(EventRecord(1.0, who, "drain", name)))
                for name, who in (("w1", SUPERVISOR), ("w9", "ann"))
            ]
            known = [Put(KEYS.known_gateway(name), b"x") for name in ("before", "elsewhere")]
            await it.store.transact((), (*drains, *known))
            it.begin()
            await it.until(lambda: it.pid("w1") and not it.has(KEYS.drain("w1")))
            await it.until(lambda: not it.has(KEYS.known_gateway("before")))
            # One of another machine, and somebody's own drain, are none of its business.
            assert it.has(KEYS.known_gateway("elsewhere"))
            assert it.has(KEYS.drain("w9"))

    asyncio.run(run())


def test_a_record_that_makes_no_sense_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with plant(tmp_path) as it:
            await it.want(worker("w1"))
            it.begin()
            await it.until(lambda: it.pid("w1"))
            await it.store.transact((), (Put(KEYS.fleet, b"{}"),))
            await it.until(lambda: any("cannot read the applied fleet" in line for line in it.lines))
            assert it.pid("w1")
            await it.want(worker("w1"), worker("w2"))
            await it.until(lambda: it.pid("w2"))

    asyncio.run(run())


def test_a_store_that_is_away_at_the_start_is_an_error(tmp_path: Path) -> None:
    async def run() -> None:
        made = Plant(tmp_path)
        made.store.away = True
        try:
            with pytest.raises(StoreUnavailable, match="cut off"):
                await made.supervisor.run(made.stopping, made.hurry)
        finally:
            await made.store.close()

    asyncio.run(run())


def test_a_pool_that_the_file_dropped_is_started_again_while_it_serves_what_is_committed() -> None:
    """Also by a supervisor that starts later: the record has its command lines."""
    text = "name: plant\npools: {new: {workers: 1}}\nmodels: {m: {version: 1}}"
    spec = parse_fleet(text, "fleet.yaml", Path("/srv")).model_dump(mode="json")
    kept = {"old": KeptPool({"old-1": ("serve", "/srv/models", "--name", "old-1")})}
    record = FleetRecord(2, text, spec, "/srv", kept=kept)

    def names(pool: str) -> set[str]:
        epoch = EpochRecord(4, {"m": Assignment("1", pools=(pool,))})
        records = {KEYS.epoch: encode(epoch), KEYS.reconciled: encode(ReconciledRecord(2, {"m": "1"}))}
        entries = {key: Entry(key, value, number) for number, (key, value) in enumerate(records.items(), 1)}
        return {name for name, each in desired_processes(record, View(KEYS, entries)).items() if each.role == "worker"}

    assert names("old") == {"new-1", "old-1"}
    assert names("new") == {"new-1"}
    # What is committed cannot be read: it may be what the old pool serves.
    broken = {KEYS.epoch: Entry(KEYS.epoch, b"{}", 1)}
    assert "old-1" in desired_processes(record, View(KEYS, broken))


@pytest.mark.parametrize(
    "key",
    [
        *(KEYS.worker("w1"), KEYS.gateway("gw"), KEYS.known_gateway("other"), KEYS.drain("w1"), KEYS.rollout("r1")),
        *(KEYS.epoch, KEYS.fleet, KEYS.switch, KEYS.event("1-a"), KEYS.process("other")),
    ],
)
def test_a_record_that_cannot_be_read_ends_nothing_and_a_restart_works(tmp_path: Path, key: str) -> None:
    async def run() -> None:
        async with plant(tmp_path) as it:
            await it.want(gateway(), worker("w1"))
            it.begin()
            await it.register_worker("w1")
            await it.register_gateway("gw", "a")
            await it.until(lambda: len(it.lines) == 2)
            pids = it.pid("gw"), it.pid("w1")
            await it.store.transact((), (Put(key, b"\xff no JSON"),))
            await it.until(lambda: any(f"the record {key} cannot be read" in line for line in it.lines))
            # It keeps working: the next desired change is made.
            await it.want(gateway(), worker("w1"), controller())
            await it.until(lambda: it.pid("c"))
            assert (it.pid("gw"), it.pid("w1")) == pids
            await it.store.transact((), (Put(key, b"\xff no JSON"),))
        async with plant(tmp_path) as again:
            if key == KEYS.fleet:
                await again.want(gateway(), worker("w1"))
            again.begin()
            await again.until(lambda: again.pid("gw") and again.pid("w1"))

    asyncio.run(run())


def test_a_process_that_dies_again_and_again_is_in_the_store_with_its_last_error(tmp_path: Path) -> None:
    async def run() -> None:
        async with plant(tmp_path) as it:
            await it.want(worker("w1", "raise SystemExit('no such module')"), worker("w2"))
            it.begin()
            await it.register_worker("w2")

            def dead() -> dict[str, ProcessRecord]:
                return it.supervisor.view.processes

            await it.until(lambda: "w1" in dead() and dead()["w1"].deaths > 1)
            record = dead()["w1"]
            assert (record.role, record.pool, record.how) == ("worker", "cpu", "ended with status 1")
            assert record.error == "no such module"
            await it.until(lambda: any("waiting for worker w1" in line for line in it.waiting))
            assert any("ended with status 1: no such module" in line for line in it.waiting)
            # No longer desired: its record is deleted.
            await it.want(worker("w2"))
            await it.until(lambda: not dead())

    asyncio.run(run())
