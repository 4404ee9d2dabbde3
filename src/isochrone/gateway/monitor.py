"""Watches one member: is it ready, how loaded is it, what does it serve.

A member that answers requests tells its load with them; one not heard of for a while is asked. Two questions without an
answer, or one answer that says not ready, make it unhealthy; one good answer makes it healthy again. Its repository
index is read before it becomes healthy, every second after that, and at once when something seems to have changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import IsochroneError
from isochrone.gateway.asking import ask_http
from isochrone.gateway.load_reports import pending_requests, report_of
from isochrone.gateway.targets import NEWS_NS
from isochrone.protocol.timing import ORCA_FORMAT_HEADER, ORCA_HEADER, parse_orca_header

if TYPE_CHECKING:
    from isochrone.gateway.connections import Connections
    from isochrone.gateway.fleet import Fleet, Member

log = structlog.get_logger()

#: What a worker serves is not asked for more often than this, whatever its answers hint at.
_LOOK_AGAIN_NS = 50 * MILLISECOND


@dataclass(frozen=True, slots=True)
class MonitorRules:
    """How members are watched."""

    #: Seconds between questions to a member that is silent.
    interval: float = 0.1
    #: Seconds a question may take.
    timeout: float = 0.25
    #: Questions without an answer in a row that make a member unhealthy.
    failures: int = 2
    #: Seconds between looks at the metrics page of a server that tells no load with its answers.
    metrics_interval: float = 0.5
    #: Seconds between looks at what a member serves.
    index_interval: float = 1.0


class Monitor:
    """One member's watch, as a task."""

    def __init__(self, member: Member, fleet: Fleet, rules: MonitorRules, lost: Callable[[Member], None]) -> None:
        self.member = member
        self._fleet = fleet
        self._rules = rules
        #: Told when the member stops answering: what is under way there is given up.
        self._lost = lost
        self._failures = 0
        self._index_at = 0
        #: Questions for the index are numbered: two may be under way, and the older one's answer may come last.
        self._index_asked = self._index_taken = 0
        self._metrics_at = self._checked_at = 0
        #: A server that tells no load with its answers tells some on its metrics page.
        self._metrics = member.metrics_connections
        self._wake = asyncio.Event()
        self._task = asyncio.ensure_future(self._watch())

    def look_now(self) -> None:
        """Something seems to have changed: looks at what it serves at once."""
        self._index_at = 0
        self._wake.set()

    def look_soon(self, now: int) -> None:
        """The same, unless it was looked at a moment ago: many requests may notice at once."""
        if now - self._index_at > _LOOK_AGAIN_NS:
            self.look_now()

    async def read_index(self) -> None:
        """Looks at what it serves, and returns when that is known."""
        if self.member.endpoint.healthy:
            await self._read_index()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            try:
                await self._look()
            except Exception as error:
                # A watch that ended would leave its member as it is for ever.
                log.error("a watch failed unexpectedly", worker=self.member.upstream.address, exc_info=error)
            try:
                # Down for long: asked less often, so that a large dead fleet costs little.
                pause = min(2.0, self._rules.interval * max(1, self._failures // 4))
                # Not wait_for: before Python 3.12 it may lose a cancellation that comes with the event.
                async with asyncio.timeout(pause):
                    await self._wake.wait()
                self._wake.clear()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        member = self.member
        now = now_ns()
        silent = now - member.heard_at > NEWS_NS or not member.endpoint.healthy
        # However much it answers: refusals are answers too.
        if silent or now - self._checked_at > SECOND:
            self._checked_at = now
            await self._check()
        if member.endpoint.healthy and not member.endpoint.reports and self._metrics is not None:
            await self._read_metrics(self._metrics)
        if member.endpoint.healthy and now - self._index_at >= self._rules.index_interval * SECOND:
            await self._read_index()

    async def _check(self) -> None:
        member = self.member
        try:
            answer = await ask_http(
                member.connections,
                b"GET",
                b"/v2/health/ready",
                ((ORCA_FORMAT_HEADER, b"text"),),
                seconds=self._rules.timeout,
            )
        except IsochroneError as error:
            self._failures += 1
            if self._failures >= self._rules.failures and member.endpoint.healthy:
                self._set_health(False, str(error))
                self._lost(member)
            return
        now = member.heard_at = now_ns()
        self._failures = 0
        if answer.status == 200 and not member.endpoint.healthy:
            # First what it serves: a worker nobody knows anything of would be asked for everything, or for nothing.
            await self._read_index()
        self._set_health(answer.status == 200, f"it says not ready (HTTP {answer.status})")
        value = answer.get(ORCA_HEADER)
        if value is not None:
            member.endpoint.reports = True
            try:
                self._fleet.reported(member, report_of(parse_orca_header(value)), now)
            except IsochroneError as error:
                log.warning("a worker's load report makes no sense", worker=member.upstream.address, error=str(error))

    def _set_health(self, healthy: bool, reason: str) -> None:
        endpoint = self.member.endpoint
        if endpoint.healthy == healthy:
            return
        endpoint.healthy = healthy
        if healthy:
            endpoint.joined_at = now_ns()
            log.info("a worker is ready", worker=endpoint.address)
        else:
            self.member.connections.drop_idle()
            log.warning("a worker is not ready", worker=endpoint.address, reason=reason)
        self._fleet.rebuild()

    async def _read_metrics(self, connections: Connections) -> None:
        """Real Triton's word on its load: requests that wait, per model."""
        now = now_ns()
        if now - self._metrics_at < self._rules.metrics_interval * SECOND:
            return
        self._metrics_at = now
        try:
            answer = await ask_http(connections, b"GET", b"/metrics", seconds=self._rules.timeout)
        except IsochroneError:
            return  # health checks decide about that
        if answer.status == 200:
            self._fleet.pending_told(self.member, pending_requests(bytes(answer.body)), now_ns())

    async def _read_index(self) -> None:
        member = self.member
        number = self._index_asked = self._index_asked + 1
        try:
            answer = await ask_http(
                member.connections,
                b"POST",
                b"/v2/repository/index",
                ((b"content-type", b"application/json"),),
                (b"{}",),
                seconds=max(2.0, self._rules.timeout),
            )
            serves = _served(msgspec.json.decode(answer.body)) if answer.status == 200 else None
        except IsochroneError:
            return  # health checks decide about that
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError, AttributeError, KeyError):
            serves = None
        if number < self._index_taken:
            return  # what was asked for later is known already
        self._index_taken = number
        self._index_at = now_ns()
        if serves != member.serves:
            member.serves = serves
            self._fleet.rebuild()


def _served(rows: Any) -> dict[str, dict[str, str]]:
    serves: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.get("state", "READY") == "READY":
            digest = str(row.get("digest", "")).removeprefix("sha256:")
            serves.setdefault(str(row["name"]), {})[str(row.get("version", ""))] = digest
    return serves
