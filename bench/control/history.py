"""The history of clients: one record per request, written by many processes, read back as one history.

Each client process appends to a file of its own, one JSON array a line, and ends it with a line that says how many
requests it started: a file without that end, or with another number, is a client that died, and its history proves
nothing. Times are of CLOCK_MONOTONIC, which all processes of one machine share. Must never drop or reorder a record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

OK, ERROR, LOST = "ok", "error", "lost"

_FLUSH_RECORDS = 512
_SUFFIX = ".history"


class BrokenHistory(Exception):
    """A file is not what a client that ended well leaves; the message says which and why."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """One request and its outcome."""

    client: str
    gateway: str
    model: str
    #: Just before the first byte was sent, and just after the last byte of the answer was read.
    started_ns: int
    ended_ns: int
    #: As the answer's ``model_version`` says; "" without one.
    version: str = ""
    #: What each stage itself wrote into its output: (model, version), in the order they ran.
    stages: tuple[tuple[str, str], ...] = ()
    #: "ok", "error" (an error answer, or the connection ended), "lost" (neither, for a long time).
    outcome: str = OK
    error: str = ""

    @property
    def latency_ns(self) -> int:
        return self.ended_ns - self.started_ns


class _End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """A file's last line."""

    requests: int


class HistoryWriter:
    """Appends one client's records to its file."""

    def __init__(self, directory: Path, client: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = (directory / f"{client}{_SUFFIX}").open("wb")
        self._encoder = msgspec.json.Encoder()
        self._waiting: list[bytes] = []
        self._started = 0

    def begin(self) -> None:
        """A request is about to be sent: its record must follow."""
        self._started += 1

    def add(self, answer: Answer) -> None:
        self._waiting.append(self._encoder.encode(answer))
        if len(self._waiting) >= _FLUSH_RECORDS:
            self._flush()

    def close(self) -> None:
        self._waiting.append(self._encoder.encode(_End(self._started)))
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        self._waiting.append(b"")
        self._file.write(b"\n".join(self._waiting))
        self._file.flush()
        self._waiting.clear()


def read_file(path: Path) -> Iterator[Answer]:
    """The records of one client; raises ``BrokenHistory`` at their end if it is not the client's own."""
    answer_of = msgspec.json.Decoder(Answer).decode
    records, end = 0, None
    with path.open("rb") as file:
        for line in file:
            if end is not None:
                raise BrokenHistory(f"{path}: records after its end")
            if line.startswith(b'["end"'):
                end = msgspec.json.decode(line, type=_End)
                continue
            try:
                answer = answer_of(line)
            except msgspec.DecodeError as error:
                raise BrokenHistory(f"{path}: record {records + 1}: {error}") from None
            records += 1
            yield answer
    if end is None:
        raise BrokenHistory(f"{path}: no end after {records} records: the client did not end well")
    if end.requests != records:
        raise BrokenHistory(f"{path}: expected {end.requests} records, as many as requests were begun, given {records}")


def read(directory: Path) -> list[Answer]:
    """All clients' records, in no particular order."""
    files = sorted(directory.glob(f"*{_SUFFIX}"))
    if not files:
        raise BrokenHistory(f"{directory}: expected files *{_SUFFIX}, given none")
    return [answer for path in files for answer in read_file(path)]


def between(history: Iterable[Answer], windows: Sequence[tuple[int, int]]) -> list[Answer]:
    """The answers that were in progress in some window; windows are in order and do not overlap."""
    ends = [until for _, until in windows]

    def is_inside(answer: Answer) -> bool:
        first = bisect_right(ends, answer.started_ns)
        return first < len(windows) and windows[first][0] < answer.ended_ns

    return [answer for answer in history if is_inside(answer)]
