"""Records of one or several logs, by time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from isochrone.errors import NotFound
from isochrone.secure.audit.records import MalformedRecord, Record, read_line
from isochrone.secure.audit.segments import is_log, segments_in


class Line(NamedTuple):
    """A line of a segment. ``record`` None: it is none; ``problem`` says why."""

    path: Path
    number: int
    content: bytes
    record: Record | None
    problem: str


def logs_in(directories: Iterable[Path]) -> list[Path]:
    """The logs that directories are, or that lie in them. Raises ``NotFound``."""
    found: list[Path] = []
    for directory in directories:
        if not directory.is_dir():
            raise NotFound(f"{directory} is not a directory; name that of --audit, or one log in it")
        logs = [directory] if is_log(directory) else sorted(each for each in directory.iterdir() if _is_log(each))
        if not logs:
            raise NotFound(f"{directory} has no audit log; name the directory of --audit, or one log in it")
        found += logs
    return list(dict.fromkeys(found))


def _is_log(path: Path) -> bool:
    return path.is_dir() and is_log(path)


def lines_of(log: Path) -> Iterator[Line]:
    """Every line of a log, in the order of its files. Raises ``OSError``."""
    for segment in segments_in(log):
        with segment.path.open("rb") as file:
            for number, content in enumerate(file, 1):
                if not content.endswith(b"\n"):
                    yield Line(segment.path, number, content, None, "the line is torn")
                    continue
                line = content[:-1]
                try:
                    yield Line(segment.path, number, line, read_line(line), "")
                except MalformedRecord as error:
                    yield Line(segment.path, number, line, None, str(error))


def merged(logs: Iterable[Path]) -> Iterator[tuple[str, Record]]:
    """Records with the names of their logs, by time. Each log keeps its order, also where its clock went back."""
    streams = [_timed(log, place) for place, log in enumerate(logs)]
    return ((name, record) for _, _, name, record in heapq.merge(*streams, key=lambda each: each[:2]))


def _timed(log: Path, place: int) -> Iterator[tuple[str, int, str, Record]]:
    latest = ""
    for line in lines_of(log):
        if line.record is not None:
            latest = max(latest, line.record.time)
            yield latest, place, log.name, line.record
