"""Where a gateway's upstreams come from, beside the command line: a DNS name, a watched file.

Each source is a task that calls back with all its upstreams whenever they change. One that fails keeps what it had: a
DNS outage must not empty a fleet, nor must an answer that is wrong for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import structlog

from isochrone.clock import now_ns
from isochrone.errors import ConfigError
from isochrone.gateway.upstream.addresses import Upstream, parse_upstream
from isochrone.resolving.outages import Outage
from isochrone.resolving.resolver import DoesNotResolve, Resolver, resolver

log = structlog.get_logger(__name__)

Changed = Callable[[Sequence[Upstream]], None]

#: Answers in a row without an address after which it leaves: if its worker does not answer health checks, and if it
#: does. A healthy worker is not hurried out: some name servers return a few of many addresses at a time.
_ABSENT, _ABSENT_HEALTHY = 3, 10


class AnsweredAddresses:
    """Which addresses of a name are endpoints, by what its name servers answer. Pure."""

    def __init__(self) -> None:
        #: Address → answers in a row without it.
        self._absent: dict[str, int] = {}

    def answered(self, found: Iterable[str], is_healthy: Callable[[str], bool]) -> tuple[str, ...]:
        """An address joins at once and leaves late. A healthy one stays while no address of the answer is healthy: the
        answer may be wrong."""
        present = dict.fromkeys(found, 0)
        absent = {address: count + 1 for address, count in self._absent.items() if address not in present}
        is_usable = any(map(is_healthy, present))
        for address, count in list(absent.items()):
            if count >= _ABSENT and (not is_healthy(address) or (is_usable and count >= _ABSENT_HEALTHY)):
                del absent[address]
        self._absent = present | absent
        return tuple(sorted(self._absent))


class DnsSource:
    """Every address behind a name, resolved again and again: a headless Kubernetes service.

    ``is_healthy``: whether the worker of an upstream takes requests.
    """

    def __init__(
        self,
        upstream: Upstream,
        changed: Changed,
        is_healthy: Callable[[Upstream], bool],
        interval: float = 1.0,
        names: Resolver = resolver,
    ) -> None:
        self._upstream = upstream
        self._changed = changed
        self._is_healthy = is_healthy
        self._interval = interval
        self._names = names
        self._addresses = AnsweredAddresses()
        self._known: tuple[str, ...] | None = None

    async def run(self) -> None:
        while True:
            try:
                self._answered(await self._names.look(self._upstream.host))
            except DoesNotResolve:
                # The resolver has logged it.
                pass
            await asyncio.sleep(self._interval)

    def _answered(self, found: Iterable[str]) -> None:
        at = self._upstream.at
        addresses = self._addresses.answered(found, lambda address: self._is_healthy(at(address)))
        if addresses != self._known:
            self._known = addresses
            self._changed([at(address) for address in addresses])


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
        outage = Outage()
        while True:
            try:
                status = self._path.stat()
                stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                if stamp == seen:
                    outage.ended(now_ns())
                else:
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
                if outage.failed(str(error), now_ns()):
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
