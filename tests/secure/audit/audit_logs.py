"""Small audit logs for tests."""

from __future__ import annotations

from pathlib import Path

from isochrone.secure.audit.actor import Actor
from isochrone.secure.audit.log import AuditLog
from isochrone.secure.audit.records import Entry
from isochrone.secure.audit.segments import segments_in
from isochrone.secure.audit.settings import AuditSettings

#: 2026-11-18, in ns since 1970.
BEGAN = 1_794_960_000 * 1_000_000_000
HOUR = 3_600 * 1_000_000_000
AGENT = Actor("anonymous", "anonymous", "10.2.3.4")


class Clock:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.now = BEGAN

    def __call__(self) -> int:
        self.now += 1_000
        return self.now


def request(number: int, clock: Clock | None = None, **details: object) -> Entry:
    now = clock() if clock is not None else BEGAN + number * 1_000
    return Entry(now, AGENT, "infer", "detector", "done", {"agent": "robot-17", "request_id": f"r{number}", **details})


def key_in(directory: Path) -> str:
    file = directory / "audit.key"
    file.write_text("0123456789abcdef0123456789abcdef\n")
    return str(file)


def settings_of(directory: Path, *, key: str = "", **other: object) -> AuditSettings:
    return AuditSettings(directory, "gw-1", True, key, **other)  # type: ignore[arg-type]


def write_log(settings: AuditSettings, numbers: range, clock: Clock | None = None) -> Path:
    """A log with a record for each number, written by a process that stopped in good order."""
    log = AuditLog(settings, clock or Clock())
    log.open()
    for number in numbers:
        log.write([request(number, clock)])
    log.close()
    return settings.log_directory


def lines_in(log: Path) -> list[list[bytes]]:
    """By segment, with their ends."""
    return [segment.path.read_bytes().splitlines(keepends=True) for segment in segments_in(log)]


def put_lines(log: Path, lines: list[list[bytes]]) -> None:
    for segment, content in zip(segments_in(log), lines, strict=True):
        segment.path.write_bytes(b"".join(content))
