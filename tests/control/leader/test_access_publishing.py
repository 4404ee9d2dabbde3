"""The leader writes what its access file says, and neither errors nor an old copy."""

from __future__ import annotations

import asyncio
import errno
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
from isochrone.control.state.records import AccessFaultRecord, AccessRecord
from isochrone.control.state.view import View
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
    """The rules after each step, as ``_views`` has them."""
    return [view.access for view in await _views(store_path, *steps, puts=puts)]


async def _views(store_path: Path, *steps: tuple[Path | None, Callable[[], None]], puts: bytes = b"") -> list[View]:
    """The records after each step, which a controller with this file makes. ``puts``: what somebody writes in place of
    the rules before the last step."""
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
            # The mirror's entries go on changing.
            found.append(View(KEYS, dict(records.view().entries)))
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


def _events(view: View) -> list[tuple[str, str, str]]:
    return [(each.who, each.what, each.about) for _, each in view.events() if each.what != "access rules"]


def test_a_file_that_is_not_used_is_an_event_and_a_record_until_it_is_mended(tmp_path: Path) -> None:
    path, secret = tmp_path / "one.yaml", "iso_Abc-123_xyz"
    away = tmp_path / "away.yaml"
    good = f"tokens: {{a: {{sha256: {DIGEST}}}}}"
    first, wrong, more, old, mended, moved, back = asyncio.run(
        _views(
            tmp_path / "store.db",
            (path, lambda: write(path, good, 1_800_000_000)),
            (path, lambda: write(path, "tokens: [", 1_800_000_001)),
            (path, lambda: write(path, f"tokens: {{a: {secret}}}\nroles: {{r: [{{may: [all]}}]}}", 1_800_000_002)),
            (path, lambda: write(path, "tokens: {}", 1_700_000_000)),
            (path, lambda: write(path, good, 1_800_000_003)),
            # The same file, with the same times, is put back.
            (path, lambda: os.rename(path, away)),
            (path, lambda: os.rename(away, path)),
        )
    )
    used, unused = "access file is used again", "access file is not used"
    assert first.access_fault is None
    assert _events(first) == []
    assert wrong.access_fault is not None
    assert (wrong.access_fault.by, "valid YAML" in wrong.access_fault.reason) == ("c1", True)
    assert _events(wrong) == [("c1", unused, str(path))]
    assert more.access_fault is not None
    assert "iso_…" in more.access_fault.reason
    assert old.access_fault is not None
    assert "older than the rules in force" in old.access_fault.reason
    assert mended.access_fault is None
    assert moved.access_fault is not None
    assert back.access_fault is None
    assert [what for _, what, _ in _events(back)] == [unused, unused, unused, used, unused, used]
    assert not [entry for view in (more, back) for entry in view.entries.values() if secret.encode() in entry.value]
    assert back.access is not None
    assert back.access.generation == 1, "the same rules"


def test_a_file_whose_rights_are_mended_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time and size stay the same. Root may read every file, so the refusal is made here."""
    path = tmp_path / "one.yaml"
    write(path, "tokens: {}")
    read = access_publishing.read_text

    def refused(*given: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    closed, opened = asyncio.run(
        _views(
            tmp_path / "store.db",
            (path, lambda: monkeypatch.setattr(access_publishing, "read_text", refused)),
            (path, lambda: monkeypatch.setattr(access_publishing, "read_text", read)),
        )
    )
    assert closed.access_fault is not None
    assert "Permission denied" in closed.access_fault.reason
    assert opened.access_fault is None
    assert opened.access is not None


def test_the_next_leader_reports_the_same_fault_no_second_time_and_drops_it_without_a_file(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"

    def wrong() -> None:
        path.write_text("tokens: {a: {sha256: short}}")

    first, _, without = asyncio.run(
        _views(tmp_path / "store.db", (path, wrong), (path, lambda: None), (None, lambda: None))
    )
    assert first.access_fault is not None
    assert without.access_fault is None
    assert [what for _, what, _ in _events(without)] == ["access file is not used", "no access file is followed"]


def test_a_fault_that_cannot_be_read_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"

    async def run() -> AccessFaultRecord | None:
        store = open_store(f"sqlite:{tmp_path}/store.db")
        try:
            await store.transact((), [Put(KEYS.access_fault, b"nonsense")])
        finally:
            await store.close()
        (view,) = await _views(tmp_path / "store.db", (path, lambda: write(path, "tokens: [")))
        assert not view.faults()
        return view.access_fault

    assert asyncio.run(run()) is not None


def test_rules_by_which_nobody_administers_are_followed_and_said(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    token = f"tokens: {{a: {{sha256: {DIGEST}}}}}\n"
    with capture_logs() as logs:
        *_, view = asyncio.run(
            _views(
                tmp_path / "store.db",
                (path, lambda: write(path, token + "assign: [{to: ['token:a'], roles: [admin]}]", 1_800_000_000)),
                (path, lambda: write(path, token, 1_800_000_001)),
            )
        )
    first, second = [each.detail for _, each in view.events() if each.what == "access rules"]
    assert first == "generation 1"
    assert second.startswith("generation 2; by them nobody may administer the fleet")
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == [
        "nobody may administer the fleet by its access rules"
    ]
