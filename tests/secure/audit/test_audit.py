"""The audit of a server: batches of requests, and what happens while nothing can be written."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from audit_logs import AGENT, request, settings_of

from isochrone.secure.audit import audit as module
from isochrone.secure.audit.actor import anonymous
from isochrone.secure.audit.audit import Audit
from isochrone.secure.audit.failures import AuditUnavailable
from isochrone.secure.audit.reading import merged
from isochrone.secure.audit.verification import verify


def request_ids(log: Path) -> list[str]:
    return [record.details["request_id"] for _, record in merged([log]) if record.action == "infer"]


def test_records_of_a_stop_are_all_there_in_their_order(tmp_path: Path) -> None:
    audit = Audit(settings_of(tmp_path))
    audit.start()
    for number in range(5000):
        audit.add(request(number))
    audit.stop()
    assert request_ids(tmp_path / "gw-1") == [f"r{number}" for number in range(5000)]
    assert verify(tmp_path / "gw-1").is_intact


def test_changes_and_batches_share_one_chain(tmp_path: Path) -> None:
    audit = Audit(settings_of(tmp_path))
    audit.start()

    async def change(number: int) -> None:
        attempt = await audit.begin(AGENT, "model.load", f"m{number}", {})
        audit.add(request(number))
        await attempt.ended(ValueError("boom") if number % 2 else None)

    async def run() -> None:
        await asyncio.gather(*(change(number) for number in range(40)))

    asyncio.run(run())
    audit.stop()
    records = [record for _, record in merged([tmp_path / "gw-1"])]
    attempts = {record.object: record.sequence for record in records if record.outcome == "attempt"}
    ends = [record for record in records if record.action == "model.load" and record.outcome != "attempt"]
    assert {each.object: each.details["attempt"] for each in ends} == attempts
    assert {each.outcome for each in ends} == {"done", "failed"}
    assert sorted(request_ids(tmp_path / "gw-1")) == sorted(f"r{number}" for number in range(40))
    assert verify(tmp_path / "gw-1").is_intact


def test_what_waits_is_bounded_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    """The thread does not start: as a disk that hangs."""
    audit = Audit(settings_of(tmp_path))
    audit.log.open()
    numbers = 0
    while audit.refusal() is None:
        audit.add(request(numbers))
        numbers += 1
    assert numbers == module._MOST
    assert not audit.is_writable
    with pytest.raises(AuditUnavailable, match="does not keep up"):
        audit.refused(AGENT, "model.load", "m", {})
    audit._write_waiting()
    assert audit.is_writable
    audit.log.close()
    assert request_ids(tmp_path / "gw-1") == [f"r{number}" for number in range(numbers)]


def test_a_failure_is_tried_again_until_it_succeeds(tmp_path: Path) -> None:
    audit = Audit(settings_of(tmp_path))
    audit.log.open()
    log = tmp_path / "gw-1"
    log.rename(tmp_path / "aside")
    audit.add(request(0))
    audit._write_waiting()
    assert not audit.is_writable
    refusal = audit.refusal()
    assert refusal is not None
    assert (refusal.http_status, refusal.unprocessed) == (503, True)
    # Of requests that were in flight.
    audit.add(request(1))
    audit._write_waiting()
    (tmp_path / "aside").rename(log)
    audit._write_waiting()
    assert audit.refusal() is None
    audit.log.close()
    assert request_ids(log) == ["r0", "r1"]
    assert verify(log).is_intact


def refused(log: Path) -> list[tuple[str, int]]:
    """The addresses of refused callers, and how often."""
    found = (record for _, record in merged([log]) if record.action == "access.refuse")
    return [(record.actor["address"], record.details["times"]) for record in found]


def test_refused_access_is_recorded_with_its_number(tmp_path: Path) -> None:
    audit = Audit(settings_of(tmp_path))
    audit.start()
    for number in range(2000):
        audit.refused_access(AGENT, "inference", "unauthenticated")
        audit.refused_access(anonymous("10.9.9.9"), "model-repository", "permission_denied", "model.load")
        if number % 100 == 0:
            audit.add(request(number))
    audit.stop()
    log = tmp_path / "gw-1"
    records = [record for _, record in merged([log]) if record.action == "access.refuse"]
    assert {(each.actor["address"], each.object, each.outcome) for each in records} == {
        ("10.2.3.4", "inference", "refused"),
        ("10.9.9.9", "model-repository", "refused"),
    }
    assert len(records) <= 4
    for address in ("10.2.3.4", "10.9.9.9"):
        assert sum(times for who, times in refused(log) if who == address) == 2000
    assert {each.details.get("change", "") for each in records} == {"", "model.load"}
    assert len(request_ids(log)) == 20
    assert verify(log).is_intact


def test_refused_access_is_counted_while_the_log_cannot_be_written(tmp_path: Path) -> None:
    audit = Audit(settings_of(tmp_path))
    audit.log.open()
    log = tmp_path / "gw-1"
    log.rename(tmp_path / "aside")
    audit.refused_access(AGENT, "inference", "unauthenticated")
    audit._write_waiting()
    assert not audit.is_writable
    for _ in range(3):
        for number in range(3000):
            audit.refused_access(anonymous(f"10.0.{number // 256}.{number % 256}"), "inference", "unauthenticated")
        audit._write_waiting()
    # What waits does not grow with what is refused.
    assert len(audit._taken) == 1
    assert audit._waiting == []
    (tmp_path / "aside").rename(log)
    audit._write_waiting()
    audit._write_waiting()
    assert audit.refusal() is None
    audit._write_waiting(is_last=True)
    audit.log.close()
    assert refused(log)[0] == ("10.2.3.4", 1)
    assert sum(times for _, times in refused(log)) == 9001
    assert verify(log).is_intact


def test_a_flood_of_refused_access_refuses_nobody_else(tmp_path: Path) -> None:
    """The thread does not start: as a disk that hangs."""
    audit = Audit(settings_of(tmp_path))
    for number in range(3 * module._MOST):
        audit.refused_access(anonymous(f"10.0.{number // 256}.{number % 256}"), "inference", "unauthenticated")
    assert audit.refusal() is None
    assert audit.is_writable


def test_counting_beside_the_thread_that_writes_loses_nothing(tmp_path: Path) -> None:
    audit = Audit(settings_of(tmp_path))
    audit.log.open()
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            audit._write_waiting(is_last=True)

    writer = threading.Thread(target=write)
    writer.start()
    for number in range(5000):
        audit.refused_access(anonymous(f"10.0.0.{number % 7}"), "inference", "unauthenticated")
    over.set()
    writer.join()
    audit._write_waiting(is_last=True)
    audit.log.close()
    assert sum(times for _, times in refused(tmp_path / "gw-1")) == 5000


def test_a_log_that_never_started_stops(tmp_path: Path) -> None:
    before = threading.active_count()
    Audit(settings_of(tmp_path)).stop()
    assert threading.active_count() == before
    assert not (tmp_path / "gw-1").exists()
