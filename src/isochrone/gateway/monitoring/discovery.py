"""Where a gateway's upstreams come from, beside the command line: a DNS name, a watched file.

Each source is a task that calls back with all its upstreams whenever they change. One that fails keeps what it had: a
DNS outage must not empty a fleet.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from isochrone.errors import ConfigError
from isochrone.gateway.upstream.addresses import Upstream, parse_upstream

log = structlog.get_logger(__name__)

Changed = Callable[[Sequence[Upstream]], None]


class DnsSource:
    """Every address behind a name, resolved again and again: a headless Kubernetes service."""

    def __init__(self, upstream: Upstream, changed: Changed, interval: float = 1.0) -> None:
        self._upstream = upstream
        self._changed = changed
        self._interval = interval
        self._known: tuple[str, ...] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                found = await loop.getaddrinfo(self._upstream.host, self._upstream.port, type=socket.SOCK_STREAM)
                addresses = tuple(sorted({str(entry[4][0]) for entry in found}))
                if addresses != self._known:
                    self._known = addresses
                    self._changed([self._upstream.at(address) for address in addresses])
            except (OSError, ValueError) as error:
                log.warning(
                    "a name does not resolve; the last addresses stay", name=self._upstream.host, error=str(error)
                )
            await asyncio.sleep(self._interval)


class FileSource:
    """A file with one upstream per line, read again when it changes. Blank lines and # comments are left out."""

    def __init__(self, path: Path, changed: Changed, interval: float = 0.5) -> None:
        self._path = path
        self._changed = changed
        self._interval = interval
        self._known: list[Upstream] | None = None

    async def run(self) -> None:
        seen: tuple[int, int, int] | None = None
        emptied = False
        while True:
            try:
                status = self._path.stat()
                stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                if stamp != seen:
                    upstreams = read_upstreams(self._path)
                    if self._known and not upstreams and not emptied:
                        # Perhaps it is being written: an empty fleet is believed at the second look.
                        emptied = True
                        await asyncio.sleep(self._interval)
                        continue
                    seen, emptied = stamp, False
                    if upstreams != self._known:
                        self._known = upstreams
                        self._changed(upstreams)
            except (OSError, ValueError, ConfigError) as error:
                log.warning(
                    "the upstream file cannot be read; the last list stays", file=str(self._path), error=str(error)
                )
            await asyncio.sleep(self._interval)


def read_upstreams(path: Path) -> list[Upstream]:
    """Raises ``ConfigError`` with file and line."""
    upstreams = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.partition("#")[0].strip()
        if text:
            upstreams.append(parse_upstream(text, f"{path}:{number}"))
    return upstreams
