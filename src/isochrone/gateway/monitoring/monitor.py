"""Watches one endpoint: is it ready, how loaded is it, what does it serve.

An endpoint that answers requests reports its load with them; a silent one is asked. It is healthy when its health check
succeeds and its repository index has been read since, in a form that parses: unknown means unserved. Two checks without
an answer, one answer that says not ready, or an index that does not parse make it unhealthy. Health checks, index reads
and metrics reads run in tasks of their own: a check must never wait for anything else.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import ConnectionLost, DeadlineExceeded, IsochroneError
from isochrone.gateway.monitoring.indexes import Indexes, Served
from isochrone.gateway.replicas import FRESH_NS
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.gateway.upstream.calls import ask_http
from isochrone.gateway.upstream.load_reports import pending_requests, report_of
from isochrone.protocol.headers.orca import ORCA_FORMAT_HEADER, ORCA_HEADER, parse_orca_header
from isochrone.wire.connect import connect_http1
from isochrone.wire.exchange import Buffer
from isochrone.wire.receiver import Response
from isochrone.wire.tls.client_tls import ClientTls

if TYPE_CHECKING:
    from isochrone.gateway.fleet.fleet import Fleet
    from isochrone.gateway.fleet.member import Member
    from isochrone.gateway.upstream.connections import Connections

#: The health check and the index of a server that speaks OpenAI's API alone.
OPENAI_MODELS = b"/v1/models"

log = structlog.get_logger(__name__)

#: An index is not read more often than this, whatever answers hint at.
_LOOK_AGAIN_NS = 50 * MILLISECOND
#: A look at an index costs as much as so many questions.
_INDEX_COST = 5
#: That are logged while a worker is not ready: some have figures that differ each time.
_MOST_REASONS = 8
#: Pauses differ by up to this share: monitors that started together must not all ask in the same turn of the loop.
_SPREAD = 0.1
#: Seconds between questions to a member that is down for long, unless the size of the fleet makes them longer.
_LONGEST_BACKOFF = 2.0
#: Seconds that a long answer, as an index may be, has at least.
_LONG_ANSWER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class MonitorRules:
    """How members are watched."""

    #: Seconds between questions to a member that is silent.
    interval: float = 0.1
    #: Seconds a question may take.
    timeout: float = 0.25
    #: Questions per second to all members together. One takes some 0.1 ms: in a fleet of more than a hundred the pauses
    #: between questions to a silent member are longer than ``interval``. The question after the first that was missed
    #: does not count.
    most_per_second: float = 1000.0
    #: Questions without an answer in a row that make a member unhealthy.
    failures: int = 2
    #: Seconds between looks at the metrics page of a server that tells no load with its answers.
    metrics_interval: float = 0.5
    #: Seconds between looks at what a member serves.
    index_interval: float = 1.0

    @property
    def index_timeout(self) -> float:
        """Seconds a read of an index may take."""
        return max(_LONG_ANSWER_SECONDS, self.timeout)

    def pause(self, members: int, failures: int) -> float:
        """Seconds until the next question to a member that missed the last ``failures`` ones, in a fleet of a size."""
        if 0 < failures < self.failures:
            # Whether it is lost is decided soon, however large the fleet.
            return self.interval
        interval = max(self.interval, members / self.most_per_second)
        # Down for long: asked less often, so that a large dead fleet costs little.
        return max(interval, min(_LONGEST_BACKOFF, interval * (failures // 4)))


class Monitor:
    """The watch of one endpoint, as tasks."""

    def __init__(
        self,
        member: Member,
        fleet: Fleet,
        rules: MonitorRules,
        lost: Callable[[Member], None],
        indexes: Indexes | None = None,
        delay: float = 0.0,
    ) -> None:
        """``delay``: seconds until the first question."""
        self.member = member
        self._indexes = indexes or Indexes()
        #: The last index that was read, as it came, and what it says.
        self._index: tuple[Buffer, Served] = (b"", {})
        self._fleet = fleet
        self._rules = rules
        self._delay = delay
        #: Called when the endpoint stops answering: what is under way there is given up.
        self._lost = lost
        self._failures = 0
        #: The last check ended without an answer long after its time.
        self._was_late = False
        self._is_loss_due = False
        self._checked_at = 0
        #: The last health check succeeded; the index was read since that began.
        self._is_ready = self._is_index_known = False
        #: Why it is not ready, as far as logged.
        self._reasons: set[str] = set()
        self._index_at = self._index_failures = 0
        self._is_index_due = True
        #: Reads of the index are numbered: two may be under way, and the older one's answer may come last.
        self._index_asked = self._index_taken = 0
        self._wake = asyncio.Event()
        watches = [self._watch_health, self._watch_index]
        if member.metrics_connections is not None:
            watches.append(self._watch_metrics)
        self._tasks = [asyncio.ensure_future(self._keep(watch)) for watch in watches]

    def look_now(self) -> None:
        """Something seems to have changed: reads the index at once."""
        self._is_index_due = True
        self._wake.set()

    def look_soon(self, now: int) -> None:
        """The same, unless it was read a moment ago: many requests may notice at once."""
        if now - self._index_at > _LOOK_AGAIN_NS:
            self.look_now()

    def process_gone(self) -> None:
        """Its process has ended, for certain. What was under way there is told by its own connections."""
        self._failures = max(self._failures, self._rules.failures)
        self.member.connections.drop_idle()
        self._not_ready("its process is gone", lost=False)
        # Unless connections are half open: then the next check without an answer gives up what is in flight there.
        self._is_loss_due = True

    async def read_index(self) -> None:
        """Reads the index, and returns when it is known."""
        if self._is_ready:
            await self._read_index()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, watch: Callable[[], Coroutine[None, None, None]]) -> None:
        if self._delay:
            await asyncio.sleep(self._delay)
        while True:
            try:
                await watch()
            except Exception as error:
                # A watch that ended would leave its endpoint as it is for ever.
                log.error("a watch failed unexpectedly", worker=self.member.upstream.address, exc_info=error)
                await asyncio.sleep(self._rules.interval)

    # Health.

    async def _watch_health(self) -> None:
        member = self.member
        while True:
            now = now_ns()
            silent = now - member.endpoint.heard_at > FRESH_NS or not member.endpoint.healthy
            # However much it answers: refusals are answers too.
            if silent or now - self._checked_at > SECOND:
                self._checked_at = now
                await self._check()
            await asyncio.sleep(_spread(self._rules.pause(len(self._fleet.members), self._failures)))

    @property
    def _index_interval(self) -> float:
        """Seconds between looks at what it serves."""
        return max(self._rules.index_interval, _INDEX_COST * len(self._fleet.members) / self._rules.most_per_second)

    async def _check(self) -> None:
        member = self.member
        asked, clock = now_ns(), asyncio.get_running_loop().time
        began = clock()
        was_late, self._was_late = self._was_late, False
        try:
            answer = await ask_http(
                member.connections,
                b"GET",
                OPENAI_MODELS if member.upstream.api else b"/v2/health/ready",
                ((ORCA_FORMAT_HEADER, b"text"), *member.connections.own_fields()),
                seconds=self._rules.timeout,
            )
        except IsochroneError as error:
            if isinstance(error, DeadlineExceeded):
                if member.endpoint.heard_at > asked:
                    # Busy with large bodies, perhaps, but there: it has answered others, or is answering, meanwhile.
                    self._failures = 0
                    return
                if _is_late(clock() - began, self._rules.timeout) and not was_late:
                    # The gateway itself got no turn meanwhile, perhaps the whole machine: ask again before judging.
                    self._was_late = True
                    return
            self._failures += 1
            if self._is_loss_due:
                self._is_loss_due = False
                self._lost(member)
            if self._failures >= self._rules.failures or not member.endpoint.healthy:
                self._not_ready(str(error))
            return
        now = member.endpoint.heard_at = now_ns()
        self._failures = 0
        self._is_loss_due = False
        if answer.status == 200:
            if not self._is_ready:
                # First what it serves: an endpoint nothing is known of gets nothing.
                self._is_ready = True
                self.look_now()
        else:
            self._not_ready(f"it says not ready (HTTP {answer.status})", lost=False)
        value = answer.get(ORCA_HEADER)
        if value is not None:
            member.endpoint.reports = True
            try:
                self._fleet.reported(member, report_of(parse_orca_header(value)), now)
            except IsochroneError as error:
                log.warning("a worker's load report makes no sense", worker=member.upstream.address, error=str(error))

    def _not_ready(self, reason: str, *, lost: bool = True) -> None:
        was_healthy = self.member.endpoint.healthy
        if reason not in self._reasons and len(self._reasons) < _MOST_REASONS:
            self._reasons.add(reason)
            if not was_healthy:
                # Not ready before, perhaps for another reason: nothing changes, so ``_settle`` logs nothing.
                log.warning("a worker is not ready", worker=self.member.upstream.address, reason=reason)
        self._is_ready = self._is_index_known = False
        self._settle(reason)
        if lost and was_healthy:
            self._lost(self.member)

    def _settle(self, fault: str = "") -> None:
        """Healthy or not, by all that is known; ``fault``: why not."""
        member, endpoint = self.member, self.member.endpoint
        healthy = self._is_ready and self._is_index_known
        member.fault = "" if healthy else fault or member.fault
        if endpoint.healthy == healthy:
            return
        endpoint.healthy = healthy
        if healthy:
            endpoint.joined_at = now_ns()
            self._reasons.clear()
            log.info("a worker is ready", worker=endpoint.address)
        else:
            member.connections.drop_idle()
            log.warning("a worker is not ready", worker=endpoint.address, reason=fault)
        self._fleet.health_changed(member)

    # What it serves.

    async def _watch_index(self) -> None:
        rules = self._rules
        while True:
            self._wake.clear()
            interval = self._index_interval
            overdue = now_ns() - self._index_at >= interval * (1 - _SPREAD) * SECOND
            if self._is_ready and (self._is_index_due or overdue):
                await self._read_index()
            failed = self._index_failures or self._is_index_due or not self._is_index_known
            pause = _spread(rules.interval if failed else interval)
            try:
                # Not wait_for: before Python 3.12 it may lose a cancellation that comes with the event.
                # Of a member that is not ready nothing is read: the check that finds it ready ends the wait.
                async with asyncio.timeout(pause if self._is_ready else None):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _read_index(self) -> None:
        member = self.member
        number = self._index_asked = self._index_asked + 1
        self._is_index_due = False
        serves: Served | None = None
        fault, is_sure = "", True
        try:
            is_openai = bool(member.upstream.api)
            answer = await self._ask_index(is_openai)
            if answer.status == 200:
                if answer.body != self._index[0]:
                    self._index = await self._indexes.read(answer.body, is_openai)
                serves = self._index[1]
            else:
                fault = f"it answers its repository index with HTTP {answer.status}"
                # A server that is busy or stopping may say so once; 404 says that it has none.
                is_sure = answer.status < 500
        except ConnectionLost:
            # Health checks decide about that; the question is still open.
            self._is_index_due = True
            return
        except asyncio.CancelledError:
            # The caller stopped waiting; the index watch reads it again.
            self.look_now()
            raise
        except IsochroneError as error:
            fault, is_sure = f"its repository index cannot be read: {error}", False
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            fault = f"its repository index is not the protocol's: {error}"
        if number < self._index_taken:
            return  # what was asked for later is known already
        self._index_taken = number
        if serves is None:
            self._index_failures += 1
            self._is_index_due = not is_sure
            if is_sure or self._index_failures >= self._rules.failures or not self._is_index_known:
                if is_sure:
                    # Asked again at the usual pace: another server may keep this port for long.
                    self._index_at = now_ns()
                if fault != member.fault and not member.endpoint.healthy:
                    log.warning("it is not known what a worker serves", worker=member.upstream.address, reason=fault)
                # Another process may listen there by now: the next question goes by a new connection.
                member.connections.drop_idle()
                self._is_index_known = False
                self._take(None)
                self._settle(fault)
            return
        self._index_at = now_ns()
        self._index_failures = 0
        self._take(serves)
        if self._is_ready:
            self._is_index_known = True
            self._settle()

    async def _ask_index(self, is_openai: bool) -> Response:
        connections, seconds = self.member.connections, self._rules.index_timeout
        if is_openai:
            return await ask_http(connections, b"GET", OPENAI_MODELS, connections.own_fields(), seconds=seconds)
        kind = ((b"content-type", b"application/json"), *connections.own_fields())
        return await ask_http(connections, b"POST", b"/v2/repository/index", kind, (b"{}",), seconds=seconds)

    def _take(self, serves: Served | None) -> None:
        if serves is not self.member.serves and serves != self.member.serves:
            self._fleet.serves_changed(self.member, serves)

    # Load of a server that reports none with its answers.

    async def _watch_metrics(self) -> None:
        connections = self.member.metrics_connections
        while connections is not None:
            endpoint = self.member.endpoint
            if endpoint.healthy and not endpoint.reports:
                await self._read_metrics(connections)
            await asyncio.sleep(self._rules.metrics_interval)

    async def _read_metrics(self, connections: Connections) -> None:
        """Real Triton's report on its load: requests that wait, per model."""
        try:
            answer = await ask_http(
                connections, b"GET", b"/metrics", connections.own_fields(), seconds=self._rules.timeout
            )
        except IsochroneError:
            return  # health checks decide about that
        if answer.status == 200:
            self._fleet.pending_reported(self.member, pending_requests(bytes(answer.body)), now_ns())


def _spread(seconds: float) -> float:
    return seconds * random.uniform(1 - _SPREAD, 1 + _SPREAD)


def _is_late(seconds: float, timeout: float) -> bool:
    """Whether a question ended so long after its time-out that this process, not the endpoint, was the slow one."""
    return seconds > 2 * timeout


async def is_alive(upstream: Upstream, seconds: float, tls: ClientTls | None = None) -> bool:
    """Whether the process of an endpoint answers on a fresh connection in so many seconds, ready or not."""
    clock = asyncio.get_running_loop().time
    began = clock()
    if await _answers(upstream, seconds, tls):
        return True
    return _is_late(clock() - began, seconds) and await _answers(upstream, seconds, tls)


async def _answers(upstream: Upstream, seconds: float, tls: ClientTls | None) -> bool:
    context, name = (None, "") if tls is None else (tls.to_server(), tls.server_name or upstream.name)
    try:
        async with asyncio.timeout(seconds):
            connection = await connect_http1(
                upstream.host, upstream.port, tls=context, server_name=name, timeout=seconds
            )
            try:
                host = ((b"host", upstream.address.encode()),)
                await connection.request(b"GET", b"/v2/health/ready", host)
            finally:
                connection.close()
    except (IsochroneError, TimeoutError, OSError):
        return False
    return True
