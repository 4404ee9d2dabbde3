"""The chain over restarts, crashes, full disks, rotation, retention and clocks that go back."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from audit_logs import HOUR, Clock, key_in, lines_in, request, settings_of, write_log

from isochrone.secure.audit.failures import AuditUnavailable
from isochrone.secure.audit.keys import read_key
from isochrone.secure.audit.log import AuditLog, is_being_written
from isochrone.secure.audit.reading import lines_of, merged
from isochrone.secure.audit.records import Record, read_line
from isochrone.secure.audit.segments import segments_in
from isochrone.secure.audit.verification import verify


def records_of(log: Path) -> list[Record]:
    return [line.record for line in lines_of(log) if line.record is not None]


def request_ids(log: Path) -> list[str]:
    return [record.details["request_id"] for record in records_of(log) if record.action == "infer"]


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file may grow beyond ``room`` bytes: writes fail as on a full disk, also in their middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_restart_goes_on_with_the_chain(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    write_log(settings, range(3))
    log = write_log(settings, range(3, 5))
    assert request_ids(log) == ["r0", "r1", "r2", "r3", "r4"]
    assert len(segments_in(log)) == 1
    records = records_of(log)
    assert [record.sequence for record in records] == list(range(1, len(records) + 1))
    assert not any("problem" in record.details or "unsealed" in record.details for record in records)
    assert verify(log).is_intact


def test_a_torn_last_line_is_put_aside_and_noted(tmp_path: Path) -> None:
    """A process that ends while it writes: each byte may be its last."""
    settings = settings_of(tmp_path, key=key_in(tmp_path))
    key = read_key(settings.key_file)
    log = write_log(settings, range(2))
    path = segments_in(log)[-1].path
    whole = path.read_bytes()
    line = whole.splitlines(keepends=True)[2]
    for left in (1, len(line) // 2, len(line) - 1):
        path.write_bytes(path.read_bytes() + line[:left])
        assert [finding.kind for finding in verify(log, key).findings] == ["truncated"]
        count = len(records_of(log))
        write_log(settings, range(1))
        start = records_of(log)[count]
        assert start.action == "audit.start"
        assert start.details["torn_bytes"] == left
        assert (log / start.details["torn_file"]).read_bytes() == line[:left]
        assert verify(log, key).is_intact


def test_records_without_a_seal_are_noted_at_the_next_start(tmp_path: Path) -> None:
    """A process that ends between its records and their seal."""
    settings = settings_of(tmp_path, key=key_in(tmp_path))
    log = write_log(settings, range(2))
    seal = (log / "seal.json").read_bytes()
    write_log(settings, range(2, 4))
    (log / "seal.json").write_bytes(seal)
    assert [finding.kind for finding in verify(log, read_key(settings.key_file)).findings] == ["unsealed"]
    count = len(records_of(log))
    write_log(settings, range(4, 5))
    assert records_of(log)[count].details["unsealed"] == 4
    assert verify(log, read_key(settings.key_file)).is_intact


def test_a_process_that_ends_before_a_segments_first_record(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    log = write_log(settings, range(2))
    (log / "segment-00000002.jsonl").touch()
    write_log(settings, range(2, 4))
    assert [segment.number for segment in segments_in(log)] == [1]
    assert verify(log).is_intact


def test_what_does_not_fit_is_not_in_the_log(tmp_path: Path) -> None:
    """At every size of the room that is left, until a record fits."""
    settings = settings_of(tmp_path, key=key_in(tmp_path))
    log = AuditLog(settings)
    log.open()
    log.write([request(0)])
    path = segments_in(settings.log_directory)[0].path
    size = path.stat().st_size
    length = len(lines_in(settings.log_directory)[0][-1])
    for room in range(0, length, 7):
        with full_disk(size + room), pytest.raises(AuditUnavailable, match=os.strerror(errno.EFBIG)):
            log.write([request(1)])
        assert path.stat().st_size == size
        assert verify(settings.log_directory, read_key(settings.key_file), live=True).is_intact
    log.write([request(2)])
    log.close()
    assert request_ids(settings.log_directory) == ["r0", "r2"]
    assert verify(settings.log_directory, read_key(settings.key_file)).is_intact


def test_a_seal_that_does_not_fit_takes_its_record_back(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    log = AuditLog(settings)
    log.open()
    (settings.log_directory / ".seal.json.new").mkdir()
    with pytest.raises(AuditUnavailable, match=str(settings.log_directory)):
        log.write([request(1)])
    (settings.log_directory / ".seal.json.new").rmdir()
    log.write([request(2)])
    log.close()
    assert request_ids(settings.log_directory) == ["r2"]
    assert verify(settings.log_directory).is_intact


def test_a_segment_that_cannot_begin_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, segment_bytes=600)
    log = AuditLog(settings)
    log.open()
    with full_disk(0), pytest.raises(AuditUnavailable):
        log.write([request(1)])
    log.write([request(2)])
    log.close()
    assert request_ids(settings.log_directory) == ["r2"]
    assert verify(settings.log_directory).is_intact


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_lost_file_takes_no_records(tmp_path: Path, how: str) -> None:
    settings = settings_of(tmp_path)
    log = AuditLog(settings)
    log.open()
    path = segments_in(settings.log_directory)[0].path
    content = path.read_bytes()
    path.rename(tmp_path / "moved")
    if how == "replaced":
        path.write_bytes(content)
    with pytest.raises(AuditUnavailable):
        log.write([request(1)])
    log.close()


def test_the_lock_tells_whether_a_process_writes(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    log = AuditLog(settings)
    log.open()
    assert is_being_written(settings.log_directory)
    log.close()
    assert not is_being_written(settings.log_directory)
    assert not is_being_written(tmp_path)


def test_segments_end_when_they_are_full_and_each_day(tmp_path: Path) -> None:
    clock = Clock()
    settings = settings_of(tmp_path)
    log = AuditLog(settings, clock)
    log.open()
    for number in range(60):
        clock.now += HOUR
        log.write([request(number, clock)])
    log.close()
    assert len(segments_in(settings.log_directory)) == 3
    # A process that starts again does not begin its day anew.
    clock.now += 13 * HOUR
    write_log(settings, range(60, 61), clock)
    assert len(segments_in(settings.log_directory)) == 4
    assert request_ids(settings.log_directory) == [f"r{number}" for number in range(61)]
    assert verify(settings.log_directory).is_intact


def test_retention_deletes_whole_old_segments_and_says_so(tmp_path: Path) -> None:
    clock = Clock()
    settings = settings_of(tmp_path, key=key_in(tmp_path), keep_days=3.0)
    log = AuditLog(settings, clock)
    log.open()
    for number in range(10 * 24):
        clock.now += HOUR
        log.write([request(number, clock)])
        # Nothing that is younger than three days is gone.
        if number % 24 == 23:
            left = request_ids(settings.log_directory)
            assert set(left) >= {f"r{each}" for each in range(max(0, number - 71), number + 1)}
    log.close()
    assert len(request_ids(settings.log_directory)) < 5 * 24 + 1
    verdict = verify(settings.log_directory, read_key(settings.key_file))
    assert verdict.is_intact
    assert verdict.deleted > 100
    checkpoints = [record for record in records_of(settings.log_directory) if record.action == "audit.retention"]
    first = read_line(lines_in(settings.log_directory)[0][0][:-1])
    assert checkpoints[-1].details["last_hash"] == first.previous
    # Somebody who goes on deleting is found.
    segments_in(settings.log_directory)[0].path.unlink()
    findings = verify(settings.log_directory, read_key(settings.key_file)).findings
    assert [finding.kind for finding in findings] == ["removed"]


def test_a_process_that_ends_before_expired_segments_are_gone(tmp_path: Path) -> None:
    """The checkpoint is written first: the log is intact with any number of the segments it names."""
    clock = Clock()
    write_log(settings_of(tmp_path), range(1), clock)
    for number in range(1, 6):
        clock.now += 25 * HOUR
        write_log(settings_of(tmp_path), range(number, number + 1), clock)
    kept = {segment.path: segment.path.read_bytes() for segment in segments_in(tmp_path / "gw-1")}
    write_log(settings_of(tmp_path, keep_days=1.0), range(6, 7), clock)
    gone = [path for path in kept if not path.exists()]
    assert len(gone) > 2
    for path in reversed(gone):
        path.write_bytes(kept[path])
        assert verify(tmp_path / "gw-1").is_intact, path
    gone[1].unlink()
    assert [finding.kind for finding in verify(tmp_path / "gw-1").findings] == ["removed"]


def test_a_clock_that_goes_back_breaks_nothing(tmp_path: Path) -> None:
    clock = Clock()
    settings = settings_of(tmp_path, keep_days=1.0)
    log = AuditLog(settings, clock)
    log.open()
    for number, hours in enumerate((1, 5, -40, 1, 50, -1000, 1)):
        clock.now += hours * HOUR
        log.write([request(number, clock)])
    log.close()
    assert verify(settings.log_directory).is_intact
    # In the order of their numbers, whatever their times say.
    names = [record.sequence for _, record in merged([settings.log_directory])]
    assert names == sorted(names)


def test_logs_are_merged_by_time(tmp_path: Path) -> None:
    clocks = Clock(), Clock()
    clocks[1].now += 500
    for number in range(2):
        settings = settings_of(tmp_path / "logs")
        settings = type(settings)(settings.directory, f"gw-{number}")
        write_log(settings, range(5), clocks[number])
    records = list(merged([tmp_path / "logs" / "gw-0", tmp_path / "logs" / "gw-1"]))
    times = [record.time for _, record in records if record.action == "infer"]
    assert times == sorted(times)
    assert len(records) == 2 * 8


def test_fifty_thousand_records(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, key=key_in(tmp_path), segment_bytes=4_000_000)
    log = AuditLog(settings)
    log.open()
    for batch in range(50):
        log.write([request(batch * 1000 + number) for number in range(1000)])
    log.close()
    verdict = verify(settings.log_directory, read_key(settings.key_file))
    assert verdict.is_intact
    assert verdict.records == 50_000 + 2 + verdict.segments
    assert verdict.segments > 3
    # One digit of one of them.
    path = segments_in(settings.log_directory)[2].path
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"r23456"', b'"r23457"'))
    (finding,) = verify(settings.log_directory, read_key(settings.key_file)).findings
    assert (finding.kind, finding.file) == ("edited", path.name)
    assert b'"r23457"' in path.read_bytes().splitlines()[finding.line - 1]


def test_names_that_callers_choose_stay_in_their_line(tmp_path: Path) -> None:
    hostile = 'a"}\n{"sequence":7,\u2028\x1b[2J\udc80' + "x" * 5000
    log = AuditLog(settings_of(tmp_path))
    log.open()
    log.write([request(0, agent=hostile)])
    log.close()
    (record,) = (each for each in records_of(tmp_path / "gw-1") if each.action == "infer")
    assert record.details["agent"] == hostile[:200].replace("\udc80", "?")
    assert verify(tmp_path / "gw-1").is_intact


def test_values_that_json_cannot_say_do_not_stop_the_log(tmp_path: Path) -> None:
    log = AuditLog(settings_of(tmp_path))
    log.open()
    log.write([request(0, size=10**40, odd=object, deep={"a": ["\ud800", 2**80, None, True, 1.5]})])
    log.close()
    (record,) = (each for each in records_of(tmp_path / "gw-1") if each.action == "infer")
    assert record.details["size"] == str(10**40)
    assert record.details["deep"] == {"a": ["?", str(2**80), None, True, 1.5]}
    assert verify(tmp_path / "gw-1").is_intact


@pytest.mark.parametrize("name", ["segment-00000001.jsonl", ".seal.json.new", "lock"])
def test_a_link_in_the_directory_makes_no_other_file_the_log(tmp_path: Path, name: str) -> None:
    """Somebody who may write the directory, and a process with more rights."""
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    log = write_log(settings_of(tmp_path), range(1))
    (log / name).unlink(missing_ok=True)
    (log / name).symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        AuditLog(settings_of(tmp_path)).open()
    assert other.read_bytes() == b"precious"


def test_where_a_torn_line_goes_is_no_link_either(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    log = write_log(settings_of(tmp_path), range(1))
    path = segments_in(log)[-1].path
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b'{"torn')
    (log / f"torn-00000001-{size}").symlink_to(other)
    write_log(settings_of(tmp_path), range(1))
    assert other.read_bytes() == b"precious"
    assert (log / f"torn-00000001-{size}").read_bytes() == b'{"torn'


@pytest.mark.parametrize(("records", "pauses"), [(1, 0), (32, 0), (33, 1), (1024, 31), (20_000, 31)])
def test_a_large_write_lets_others_run_in_between(
    records: int, pauses: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop needs the interpreter's lock; and however much waits, a write has few pauses."""
    made: list[float] = []
    monkeypatch.setattr("isochrone.secure.audit.log.time.sleep", made.append)
    log = AuditLog(settings_of(tmp_path), Clock())
    log.open()
    log.write([request(number) for number in range(records)])
    log.close()
    assert len(made) == pauses
    assert request_ids(tmp_path / "gw-1") == [f"r{number}" for number in range(records)]
    assert verify(tmp_path / "gw-1", None).is_intact
