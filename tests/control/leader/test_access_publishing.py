"""The leader writes what its access file says, and neither errors nor an old copy."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from isochrone.control.leader import access_publishing
from isochrone.control.leader.access_publishing import AccessPublishing
from isochrone.control.leader.election import Candidate
from isochrone.control.leader.records import LeaderRecords
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import AccessRecord
from isochrone.secure.access.document import parse_access
from isochrone.settings.documents import Document
from isochrone.store.base import Put
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store

KEYS = Keys("test")
DIGEST = "a" * 64


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_publishing, "_INTERVAL", 0.0)


def write(path: Path, text: str, at: int = 0) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    if at:
        os.utime(new, (at, at))
    os.replace(new, path)


async def _published(
    store_path: Path, *steps: tuple[Path | None, Callable[[], None]], puts: bytes = b""
) -> list[AccessRecord | None]:
    """The record after each step, which a controller with this file makes. ``puts``: what somebody writes in its place
    before the last step."""
    store = open_store(f"sqlite:{store_path}")
    mirror = Mirror(store, KEYS.prefix)
    await mirror.start()
    candidate = Candidate(store, KEYS, mirror, "c1", 60.0)
    await candidate.campaign()
    records = LeaderRecords(store, KEYS, mirror, candidate)
    parts: dict[Path | None, AccessPublishing] = {}
    found = []
    try:
        for number, (path, change) in enumerate(steps, 1):
            change()
            if puts and number == len(steps):
                outcome = await store.transact((), [Put(KEYS.access, puts)])
                await mirror.catch_up(outcome.revision)
            part = parts.setdefault(path, AccessPublishing(records, path, "c1"))
            await part.reconcile(records.view())
            await part.reconcile(records.view())
            found.append(records.view().access)
    finally:
        await candidate.resign()
        await mirror.stop()
        await store.close()
    return found


def test_what_is_written(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    revoked = f"tokens: {{a: {{sha256: {DIGEST}, expires: 2027-06-01, revoked: true}}}}"
    with capture_logs() as logs:
        first, same, wrong, gone, second, old, touched, nobody = asyncio.run(
            _published(
                tmp_path / "store.db",
                (one, lambda: write(one, f"tokens: {{a: {{sha256: {DIGEST}, expires: 2027-06-01}}}}", 1_800_000_000)),
                (one, lambda: os.utime(one, (1_800_000_001, 1_800_000_001))),
                (one, lambda: write(one, "tokens: [", 1_800_000_002)),
                (one, one.unlink),
                (one, lambda: write(one, revoked, 1_800_000_003)),
                # Another controller leads, on a machine that has the file as it was.
                (two, lambda: write(two, f"tokens: {{a: {{sha256: {DIGEST}}}}}", 1_800_000_001)),
                (two, lambda: os.utime(two, (1_800_000_004, 1_800_000_004))),
                (None, lambda: None),
            )
        )
    assert first is not None
    assert first.generation == 1
    assert parse_access(Document("", first.document, None)).tokens[DIGEST].expires is not None
    assert same == wrong == gone == first
    assert second is not None
    assert second.generation == 2
    assert old == second
    assert touched is not None
    assert (touched.generation, nobody) == (3, touched)
    assert not parse_access(Document("", touched.document, None)).tokens[DIGEST].revoked
    said = [each["event"] for each in logs if each["log_level"] == "error"]
    assert sum("cannot be read" in each for each in said) >= 1
    assert sum("older than the rules in force" in each for each in said) == 1


def test_a_store_that_does_not_take_the_rules_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.yaml"

    async def refuse(*given: object, **more: object) -> bool:
        raise RuntimeError("request is too large")

    monkeypatch.setattr(LeaderRecords, "write", refuse)
    with capture_logs() as logs:
        found = asyncio.run(_published(tmp_path / "store.db", (path, lambda: write(path, "tokens: {}"))))
    assert found == [None]
    assert [each["event"] for each in logs if each["log_level"] == "error"] == [
        "the access rules cannot be written to the store"
    ]


@pytest.mark.parametrize("writes", [b"nonsense", encode(AccessRecord(1, {"tokens": {}}, 1_700_000_000.0))])
def test_a_record_that_is_damaged_or_put_back_lets_no_older_file_in(tmp_path: Path, writes: bytes) -> None:
    path = tmp_path / "one.yaml"
    with capture_logs() as logs:
        first, _ = asyncio.run(
            _published(
                tmp_path / "store.db",
                (path, lambda: write(path, f"tokens: {{a: {{sha256: {DIGEST}, revoked: true}}}}", 1_800_000_002)),
                (path, lambda: write(path, f"tokens: {{a: {{sha256: {DIGEST}}}}}", 1_800_000_001)),
                puts=writes,
            )
        )
    assert first is not None
    assert [each["event"] for each in logs if "older than the rules in force" in each["event"]]
    assert not [each for each in logs if each.get("generation") == 2]
