"""Every change of a log is found: edited, removed, reordered, added and truncated records, and forged seals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from audit_logs import key_in, lines_in, put_lines, request, settings_of, write_log
from hypothesis import strategies as st

from isochrone.errors import FlagError
from isochrone.secure.audit.actor import Actor
from isochrone.secure.audit.keys import AuditKey, read_key
from isochrone.secure.audit.log import AuditLog
from isochrone.secure.audit.records import Entry, line_of, read_line
from isochrone.secure.audit.seals import read_seal, sealed, write_seal
from isochrone.secure.audit.segments import SEAL, segments_in
from isochrone.secure.audit.verification import Verdict, verify


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several segments, begun once more in between. Nobody may change it: tests change copies."""
    root = tmp_path_factory.mktemp("original")
    settings = settings_of(root, key=key_in(root), segment_bytes=1500)
    write_log(settings, range(6))
    return write_log(settings, range(6, 12))


@pytest.fixture(scope="module")
def key(original: Path) -> AuditKey | None:
    return read_key(str(original.parent / "audit.key"))


@pytest.fixture(scope="module")
def copy_of(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    root = tmp_path_factory.mktemp("copies")

    def copied() -> Path:
        shutil.rmtree(root / original.name, ignore_errors=True)
        return Path(shutil.copytree(original, root / original.name))

    return copied


def kinds(verdict: Verdict) -> set[str]:
    return {finding.kind for finding in verdict.findings}


def test_an_untouched_log_is_intact(original: Path, key: AuditKey) -> None:
    verdict = verify(original, key)
    assert verdict.is_intact
    assert verdict.is_sealed
    assert verdict.segments > 3
    # Twelve requests, two starts, two stops and the first record of each segment.
    assert verdict.records == verdict.sequence == 12 + 4 + verdict.segments


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=300)
@pytest.mark.parametrize("with_key", [True, False])
def test_every_changed_byte_is_found(
    with_key: bool, data: st.DataObject, copy_of: Callable[[], Path], key: AuditKey
) -> None:
    log = copy_of()
    segment = data.draw(st.sampled_from(segments_in(log)))
    content = bytearray(segment.path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[place]))
    segment.path.write_bytes(bytes(content))
    assert not verify(log, key if with_key else None).is_intact


def _flat(lines: list[list[bytes]]) -> list[tuple[int, int]]:
    return [(file, line) for file, content in enumerate(lines) for line in range(len(content))]


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=150)
def test_a_removed_record_is_found_and_named(data: st.DataObject, copy_of: Callable[[], Path], key: AuditKey) -> None:
    log = copy_of()
    lines = lines_in(log)
    file, line = data.draw(st.sampled_from(_flat(lines)))
    gone = read_line(lines[file].pop(line)[:-1])
    put_lines(log, lines)
    verdict = verify(log, key)
    last = read_seal(log)
    assert last is not None
    expected = "truncated" if gone.sequence == last.sequence else "removed"
    assert any(finding.kind == expected and finding.record == gone.sequence for finding in verdict.findings)


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=150)
def test_swapped_records_are_found_as_reordered(
    data: st.DataObject, copy_of: Callable[[], Path], key: AuditKey
) -> None:
    log = copy_of()
    lines = lines_in(log)
    places = _flat(lines)
    one, other = data.draw(st.lists(st.sampled_from(places), min_size=2, max_size=2, unique=True))
    (a, b), (c, d) = one, other
    lines[a][b], lines[c][d] = lines[c][d], lines[a][b]
    put_lines(log, lines)
    found = kinds(verify(log, key))
    assert "reordered" in found
    # Nothing is missing: where the last record moves forward, the end of the log only seems to be there.
    assert "edited" not in found


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=150)
def test_a_copied_record_is_found(data: st.DataObject, copy_of: Callable[[], Path], key: AuditKey) -> None:
    log = copy_of()
    lines = lines_in(log)
    file, line = data.draw(st.sampled_from(_flat(lines)))
    to, at = data.draw(st.sampled_from(_flat(lines)))
    lines[to].insert(at + 1, lines[file][line])
    put_lines(log, lines)
    assert not verify(log, key).is_intact


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=200)
@pytest.mark.parametrize("with_key", [True, False])
def test_every_truncation_is_found(
    with_key: bool, data: st.DataObject, copy_of: Callable[[], Path], key: AuditKey
) -> None:
    """At any byte: whole segments behind it are gone."""
    log = copy_of()
    segments = segments_in(log)
    index = data.draw(st.integers(0, len(segments) - 1))
    size = segments[index].path.stat().st_size
    left = data.draw(st.integers(0, size - 1))
    with segments[index].path.open("r+b") as file:
        file.truncate(left)
    for segment in segments[index + 1 :]:
        segment.path.unlink()
    assert "truncated" in kinds(verify(log, key if with_key else None))


def test_each_removed_segment_is_found(copy_of: Callable[[], Path], original: Path, key: AuditKey) -> None:
    for index in range(len(segments_in(original))):
        log = copy_of()
        segments_in(log)[index].path.unlink()
        assert kinds(verify(log, key)) & {"removed", "truncated"}, index


def test_swapped_segments_are_found(copy_of: Callable[[], Path], key: AuditKey) -> None:
    log = copy_of()
    one, other = segments_in(log)[0].path, segments_in(log)[1].path
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    assert "reordered" in kinds(verify(log, key))


def _rewritten(log: Path, change: Callable[[dict[str, Any]], None]) -> tuple[int, str]:
    """The whole chain made anew after a change, as somebody without the key can; the number and hash of its end."""
    sequence, digest = 0, "0" * 64
    lines = []
    for content in lines_in(log):
        made = []
        for line in content:
            values = json.loads(line)
            change(values)
            entry = Entry(0, Actor(**values["actor"]), *(values[name] for name in ("action", "object", "outcome")), {})
            entry = entry._replace(details=values["details"])
            sequence += 1
            new, digest = line_of(entry, sequence, digest)
            made.append(new)
        lines.append(made)
    put_lines(log, lines)
    return sequence, digest


def _other_agent(values: dict[str, Any]) -> None:
    if values["details"].get("request_id") == "r3":
        values["details"]["agent"] = "robot-18"


def test_a_log_made_anew_without_the_key_is_found(copy_of: Callable[[], Path], key: AuditKey) -> None:
    log = copy_of()
    before = read_seal(log)
    assert before is not None
    sequence, digest = _rewritten(log, _other_agent)
    # With the old seal, which names another record.
    assert kinds(verify(log, key)) == {"edited"}
    # With a seal of somebody else's key, and with one without a key.
    for stranger in (AuditKey(b"another key of some length"), None):
        write_seal(log, sealed(before.log, before.segment, sequence, digest, stranger))
        assert kinds(verify(log, key)) == {"forged"}
    # Without the key only a hash that was kept elsewhere tells.
    assert verify(log).is_intact
    assert kinds(verify(log, heads=frozenset({before.hash}))) == {"truncated"}


def test_a_removed_seal_is_found(copy_of: Callable[[], Path], key: AuditKey) -> None:
    log = copy_of()
    (log / SEAL).unlink()
    assert kinds(verify(log, key)) == {"truncated"}
    assert kinds(verify(log)) == {"truncated"}


def test_records_added_behind_the_seal_are_found(copy_of: Callable[[], Path], key: AuditKey) -> None:
    log = copy_of()
    seal = read_seal(log)
    assert seal is not None
    added, _ = line_of(request(99), seal.sequence + 1, seal.hash)
    with segments_in(log)[-1].path.open("ab") as file:
        file.write(added)
    assert kinds(verify(log, key)) == {"unsealed"}
    # A process that runs writes its seal after its records.
    assert verify(log, key, live=True).unsealed == 1


def test_a_log_of_another_process_with_its_seal_is_no_end_of_this_one(
    copy_of: Callable[[], Path], key: AuditKey, tmp_path: Path
) -> None:
    log = copy_of()
    other = write_log(settings_of(tmp_path, key=key_in(tmp_path), segment_bytes=1500), range(2))
    shutil.copy(other / SEAL, log / SEAL)
    assert "forged" in kinds(verify(log, key))


def test_a_restart_does_not_whitewash_a_truncated_log(
    copy_of: Callable[[], Path], original: Path, key: AuditKey
) -> None:
    log = copy_of()
    lines = lines_in(log)
    del lines[-1][-2:]
    put_lines(log, lines)
    settings = settings_of(log.parent, key=str(original.parent / "audit.key"), segment_bytes=1500)
    write_log(settings, range(20, 22))
    verdict = verify(log, key)
    assert kinds(verdict) == {"truncated"}
    assert "were missing" in verdict.findings[0].message


def test_a_restart_does_not_whitewash_a_forged_seal(copy_of: Callable[[], Path], original: Path, key: AuditKey) -> None:
    log = copy_of()
    before = read_seal(log)
    assert before is not None
    sequence, digest = _rewritten(log, _other_agent)
    write_seal(log, sealed(before.log, before.segment, sequence, digest, AuditKey(b"another key of some length")))
    write_log(settings_of(log.parent, key=str(original.parent / "audit.key")), range(20, 21))
    assert kinds(verify(log, key)) == {"forged"}


def test_a_restart_over_a_deleted_log_says_what_was_there(
    copy_of: Callable[[], Path], original: Path, key: AuditKey
) -> None:
    log = copy_of()
    for segment in segments_in(log):
        segment.path.unlink()
    write_log(settings_of(log.parent, key=str(original.parent / "audit.key")), range(20, 21))
    assert "removed" in kinds(verify(log, key))


def test_a_forged_number_costs_no_time(copy_of: Callable[[], Path], key: AuditKey) -> None:
    log = copy_of()
    lines = lines_in(log)
    record = read_line(lines[0][2][:-1])
    lines[0][2], _ = line_of(request(1), 10**18, record.previous)
    put_lines(log, lines)
    assert "removed" in kinds(verify(log, key))


@pytest.mark.parametrize("segment", ["x", None, -1, 1.5, 10**30, [1]])
def test_records_of_the_log_itself_that_nobody_wrote(
    segment: object, copy_of: Callable[[], Path], key: AuditKey
) -> None:
    """The verifier itself must survive what an attacker writes with hashes that are right."""
    log = copy_of()
    before = read_seal(log)
    assert before is not None

    def change(values: dict[str, Any]) -> None:
        if values["action"] == "audit.segment":
            values["details"] = {"segment": segment, "log": segment}
        elif values["action"] == "infer":
            values["action"] = "audit.retention"
            values["details"] = {"deleted_through": segment, "last_sequence": segment, "last_hash": segment}

    _rewritten(log, change)
    segments_in(log)[0].path.unlink()
    found = kinds(verify(log, key))
    assert "reordered" in found
    assert "removed" in found


def test_an_edited_last_record_is_there(copy_of: Callable[[], Path], key: AuditKey) -> None:
    log = copy_of()
    path = segments_in(log)[-1].path
    path.write_bytes(path.read_bytes()[:-70] + path.read_bytes()[-70:].replace(b"a", b"b").replace(b"1", b"2"))
    verdict = verify(log, key)
    assert kinds(verdict) == {"edited"}
    assert not verdict.is_sealed


def test_a_log_has_one_writer(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    first = AuditLog(settings)
    first.open()
    with pytest.raises(FlagError, match="another process has"):
        AuditLog(settings).open()
    first.close()
    write_log(settings, range(1))
