"""The access log: which requests, which values, and where they go."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import FlagError
from isochrone.observe.access_log.lines import line_of
from isochrone.observe.access_log.output import LogOutput
from isochrone.observe.access_log.sampling import LoggedShare
from isochrone.observe.access_log.settings import AccessLogSettings, read_access_log
from isochrone.observe.access_log.writer import AccessLog
from isochrone.observe.failure_limit import FailureLimit


@given(st.floats(0.001, 1), st.integers(0, 3000))
def test_the_share_is_kept(share: float, requests: int) -> None:
    logged = LoggedShare(share, FailureLimit(1, 0))
    found = sum(logged.takes(False, 0) for _ in range(requests))
    assert abs(found - requests * share) <= 1


def test_no_share_logs_failures_alone_up_to_their_rate() -> None:
    logged = LoggedShare(0.0, FailureLimit(1, 0))
    assert not any(logged.takes(False, 0) for _ in range(100))
    assert sum(logged.takes(True, 0) for _ in range(100)) == 10
    assert logged.failures.dropped == 90


@given(st.text())
def test_what_a_caller_chooses_stays_on_its_line(text: str) -> None:
    line = line_of({"request_id": text, "latency_ms": 1.5, "absent": None}, 0)
    assert line.endswith(b"\n")
    assert all(0x20 <= byte < 0x7F for byte in line[:-1])
    found = json.loads(line)
    assert found.get("request_id", "") == text[:200]
    assert found["timestamp"] == "1970-01-01T00:00:00.000000Z"
    assert "absent" not in found


@pytest.mark.parametrize(("given", "share"), [("0", 0.0), ("0.25", 0.25), ("1", 1.0)])
def test_flags(given: str, share: float) -> None:
    assert read_access_log(given, "f", "gw") == AccessLogSettings(share, "f", name="gw")


def test_the_log_is_off_or_its_flags_make_sense() -> None:
    assert read_access_log("off", "", "gw") is None
    for share, path in (("2", ""), ("-0.1", ""), ("much", ""), ("nan", ""), ("off", "file")):
        with pytest.raises(FlagError):
            read_access_log(share, path, "gw")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_that_was_moved_away_is_opened_again(tmp_path: Path) -> None:
    path, moved = tmp_path / "access.log", tmp_path / "access.log.1"
    output = LogOutput(str(path))
    output.write([b"first\n"])
    os.rename(path, moved)
    output.write([b"second\n"])
    output.close()
    assert (moved.read_text(), path.read_text()) == ("first\n", "second\n")


def test_lines_are_written_beside_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(AccessLogSettings(1.0, str(path)))
    log.start()
    for number in range(1000):
        log.add({"request_id": str(number)})
    log.stop(10)
    assert [line["request_id"] for line in lines(path)] == [str(number) for number in range(1000)]
    assert (log.snapshot().written, log.snapshot().dropped) == (1000, 0)


def test_a_reader_that_hangs_costs_lines_and_no_memory(tmp_path: Path) -> None:
    """A pipe that nobody reads: its buffer fills, then the queue; the caller goes on."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(AccessLogSettings(1.0, str(path)), most=100)
    log.start()
    filled = threading.Event()
    for number in range(200_000):
        log.add({"request_id": "x" * 100, "number": number})
        if log.snapshot().dropped > 1000:
            filled.set()
            break
    assert filled.is_set()
    log.stop(0.1)
    # The thread ends with its reader.
    os.close(reader)
    log._thread.join(10)
    assert not log._thread.is_alive()
    assert log.snapshot().written < 5000


def test_a_directory_that_is_not_there_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        AccessLog(AccessLogSettings(1.0, str(tmp_path / "absent" / "file"))).start()
