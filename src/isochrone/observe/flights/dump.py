"""Writes requests that missed their deadline to a file, one JSON line each, away from their way.

A timer collects the misses of the last moment and a thread appends them. Bounded: so many lines a second, and two files
of so many bytes each, of which the older one is overwritten. A disk that is full costs lines and nothing else.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from isochrone.observe.flights.messages import FlightPage

log = structlog.get_logger(__name__)

_SECONDS = 0.2
#: Lines written at a time, five times a second.
_MOST_LINES = 40
_MOST_BYTES = 16 << 20


class MissSource(Protocol):
    """The flight recorder of a worker or a gateway."""

    @property
    def role(self) -> str: ...

    def missed_since(self, count: int, most: int) -> tuple[int, list[FlightPage]]:
        """The number of misses so far, and a page for each since ``count``."""
        ...


class DumpFile:
    """The file of one process; ``write`` is for a thread."""

    def __init__(self, directory: Path, role: str, most_bytes: int = _MOST_BYTES) -> None:
        self.path = directory / f"{role}-{os.getpid()}.jsonl"
        self._earlier = self.path.with_suffix(".earlier.jsonl")
        self._most_bytes = most_bytes

    def write(self, lines: list[bytes]) -> None:
        """Raises ``OSError``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = b"".join(line + b"\n" for line in lines)
        try:
            if self.path.stat().st_size + len(data) > self._most_bytes:
                os.replace(self.path, self._earlier)
        except FileNotFoundError:
            pass
        with self.path.open("ab") as file:
            file.write(data)


class FlightDump:
    """Writes the misses of one process from ``start`` to ``stop``."""

    def __init__(self, source: MissSource, directory: Path, file: DumpFile | None = None) -> None:
        self._source = source
        self._file = file or DumpFile(directory, source.role)
        self._count = 0
        self._task: asyncio.Task[None] | None = None
        #: Misses that were written, and those that were not: too many at once, or the disk did not take them.
        self.written = self.lost = 0
        self._is_failing = False

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Writes the last misses."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        await self.write_new()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS)
            try:
                await self.write_new()
            except Exception as error:
                # A fault of ours with one miss must not end the dump of all others.
                log.error("deadline misses could not be written", exc_info=error)

    async def write_new(self) -> None:
        """Writes what was missed since the last call."""
        before = self._count
        self._count, kept = self._source.missed_since(before, _MOST_LINES)
        self.lost += self._count - before - len(kept)
        if not kept:
            return
        try:
            await asyncio.to_thread(self._file.write, [msgspec.json.encode(page) for page in kept])
        except OSError as error:
            self.lost += len(kept)
            if not self._is_failing:
                self._is_failing = True
                log.warning(
                    "deadline misses cannot be written; choose another directory with --dump-flights",
                    file=str(self._file.path),
                    error=str(error),
                )
        else:
            self._is_failing = False
            self.written += len(kept)


def read_dump(path: Path, request_id: str) -> list[FlightPage]:
    """The pages of one id in a file; a line that was cut off is left out. Raises ``OSError``."""
    decoder = msgspec.json.Decoder(FlightPage)
    quoted = msgspec.json.encode(request_id)
    found: list[FlightPage] = []
    with path.open("rb") as file:
        for line in file:
            if quoted not in line:
                continue
            try:
                page = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if any(request_id in (flight.id, *flight.further_ids) for flight in page.flights):
                found.append(page)
    return found
