"""What is known of workers: kept over lost records, told apart by process, and doubted as soon as they stand still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import msgspec
import pytest
from xds_workers import IndexWorker, running, until

from isochrone.control.xds import served_versions
from isochrone.control.xds.served_versions import ServedVersions
from isochrone.control.xds.snapshot import ServingWorker

READY, INDEX = "/v2/health/ready", "/v2/repository/index"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no worker silent."""
    monkeypatch.setattr(served_versions, "_READ_SECONDS", 20.0)


@dataclass
class _Known:
    served: ServedVersions
    reports: int = 0

    def of(self, name: str) -> ServingWorker | None:
        return next((each for each in self.served.workers() if each.record.name == name), None)

    def answers(self, name: str) -> bool:
        found = self.of(name)
        return found is not None and found.answers


@asynccontextmanager
async def _reading(*workers: IndexWorker, linger: float = 3600.0) -> AsyncIterator[_Known]:
    def report() -> None:
        known.reports += 1

    async with running(*workers):
        known = _Known(ServedVersions(report, linger))
        try:
            yield known
        finally:
            await known.served.close()


def test_a_worker_whose_lease_expires_is_kept_while_it_answers() -> None:
    async def scenario() -> None:
        worker = IndexWorker(v1="d1")
        async with _reading(worker) as known:
            record = {"w": worker.record("w")}
            known.served.keep(record, connected=True)
            await until(lambda: known.answers("w"))
            changes = known.served.changes
            known.served.keep({}, connected=True)
            assert known.answers("w")
            await until(lambda: worker.calls.get(READY, 0) >= 2)
            known.served.keep({}, connected=True)
            known.served.keep(record, connected=True)
            assert known.answers("w")
            assert known.served.changes == changes, "nothing is published for it"
            # It is not asked for more than its index once its record is back.
            asked, read = worker.calls[READY], worker.calls[INDEX]
            await known.served.read_all(10.0)
            await known.served.read_all(10.0)
            assert worker.calls[READY] <= asked + 1
            assert worker.calls[INDEX] > read

    asyncio.run(scenario())


@pytest.mark.parametrize("ends", [True, False])
def test_a_worker_without_a_record_that_stops_or_ends_is_silent(ends: bool) -> None:
    async def scenario() -> None:
        worker = IndexWorker(v1="d1")
        async with _reading(worker) as known:
            known.served.keep({"w": worker.record("w")}, connected=True)
            await until(lambda: known.answers("w"))
            worker.is_ready = False
            if ends:
                await worker.end()
            changes = known.served.changes
            known.served.keep({}, connected=True)
            await until(lambda: not known.answers("w"))
            assert known.of("w") is not None
            assert known.served.changes > changes
            assert known.reports == known.served.changes

    asyncio.run(scenario())


def test_a_vanished_worker_is_dropped_in_the_end_and_never_while_the_store_is_away() -> None:
    async def scenario() -> None:
        worker = IndexWorker(v1="d1")
        async with _reading(worker, linger=0.0) as known:
            known.served.keep({"w": worker.record("w")}, connected=True)
            await until(lambda: known.answers("w"))
            for _ in range(3):
                known.served.keep({}, connected=False)
                assert known.answers("w")
            # Someone must look again, although the store says nothing more.
            known.served.keep({"w": worker.record("w")}, connected=True)
            reports = known.reports
            known.served.keep({}, connected=True)
            assert known.answers("w")
            await until(lambda: known.reports > reports)
            known.served.keep({}, connected=True)
            assert (known.of("w"), len(known.served)) == (None, 0)

    asyncio.run(scenario())


def test_a_drained_worker_is_dropped_at_once() -> None:
    async def scenario() -> None:
        worker = IndexWorker(v1="d1")
        async with _reading(worker) as known:
            records = {"w": worker.record("w")}
            known.served.keep(records, connected=True)
            await until(lambda: known.answers("w"))
            known.served.keep(records, {"w"}, connected=False)
            assert len(known.served) == 0

    asyncio.run(scenario())


def test_a_changed_record_of_the_same_process_changes_nothing_until_it_is_read() -> None:
    async def scenario() -> None:
        worker, elsewhere = IndexWorker(v1="d1"), IndexWorker(v2="d2")
        async with _reading(worker, elsewhere) as known:
            first = worker.record("w", incarnation="a")
            known.served.keep({"w": first}, connected=True)
            await until(lambda: known.answers("w"))
            before = known.of("w")
            elsewhere.moves.clear()
            moved = elsewhere.record("w", incarnation="a", region="north")
            known.served.keep({"w": moved}, connected=True)
            assert known.of("w") == before, "the address is that of what was read"
            elsewhere.moves.set()
            await until(lambda: known.of("w") != before)
            assert before is not None
            assert known.of("w") == replace(before, record=moved, served={"solo": {"2": "d2"}})

    asyncio.run(scenario())


def test_what_a_process_served_before_its_last_start_counts_no_longer() -> None:
    async def scenario() -> None:
        worker = IndexWorker(v1="d1")
        async with _reading(worker) as known:
            first = worker.record("w", incarnation="a")
            known.served.keep({"w": first}, connected=True)
            await until(lambda: known.answers("w"))
            worker.moves.clear()
            known.served.keep({"w": msgspec.structs.replace(first, incarnation="b")}, connected=True)
            assert known.of("w") is None
            worker.served = {}
            worker.moves.set()
            await until(lambda: known.answers("w"))
            found = known.of("w")
            assert found is not None
            assert found.served == {}

    asyncio.run(scenario())


def test_a_worker_that_stands_still_is_silent_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_versions, "_READ_SECONDS", 0.2)

    async def scenario() -> None:
        worker = IndexWorker(v1="d1")
        async with _reading(worker) as known:
            known.served.keep({"w": worker.record("w")}, connected=True)
            await until(lambda: known.answers("w"))
            worker.moves.clear()
            changes = known.served.changes
            await until(lambda: not known.answers("w"))
            assert known.served.changes > changes
            changes = known.served.changes
            worker.moves.set()
            await until(lambda: known.answers("w"))
            assert known.served.changes > changes

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [b"[" * 3_000, b"no JSON", b"{}", b'[{"version": "1"}]', b"\xff\xfe", b"", b"null"])
def test_a_worker_that_answers_nonsense_is_silent_and_keeps_what_it_said(body: bytes) -> None:
    async def scenario() -> None:
        worker = IndexWorker(v1="d1")
        async with _reading(worker) as known:
            known.served.keep({"w": worker.record("w")}, connected=True)
            await until(lambda: known.answers("w"))
            worker.body, changes = body, known.served.changes
            while known.answers("w"):
                await known.served.read_all(10.0)
            assert known.served.changes == changes + 1
            found = known.of("w")
            assert found is not None
            assert found.served == {"solo": {"1": "d1"}}

    asyncio.run(scenario())


def test_an_index_that_has_not_changed_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    parse = served_versions.WorkerControl.parsed_index

    def counted(control: served_versions.WorkerControl, body: bytes) -> object:
        parsed.append(body)
        return parse(control, body)

    monkeypatch.setattr(served_versions.WorkerControl, "parsed_index", counted)

    async def scenario() -> None:
        worker = IndexWorker(v1="d1")
        async with _reading(worker) as known:
            known.served.keep({"w": worker.record("w")}, connected=True)
            for _ in range(4):
                await known.served.read_all(10.0)
            assert worker.calls[INDEX] >= 4
            assert len(parsed) == 1
            worker.served["2"] = "d2"
            await known.served.read_all(10.0)
            assert len(parsed) == 2
            found = known.of("w")
            assert found is not None
            assert found.served == {"solo": {"1": "d1", "2": "d2"}}

    asyncio.run(scenario())
