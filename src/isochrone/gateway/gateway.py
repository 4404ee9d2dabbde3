"""The gateway as its routes and its control plane see it: a request shell, driven by the clock.

While requests are under way, every few ms it calls the machine for those that are due, ten times a second it looks for
changes of endpoints and collects counts. A sweep that looks only when a request may be due costs less than a timer per
request. While none is, the gateway rests: one timer a second is left, for outliers and for what only time changes. The
request that ends the rest starts the other timers again. What may be long is done in steps, each in a turn of the loop
of its own: requests go on between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.clock import SECOND, now_ns
from isochrone.gateway.evaluation.counts import EvaluationReport
from isochrone.gateway.evaluation.sampling import SampleReport
from isochrone.gateway.fleet.faults import Faults
from isochrone.gateway.housekeeping import Steps, finished, in_turns
from isochrone.gateway.monitoring.monitor import MonitorRules
from isochrone.gateway.request_shell import LOOK_NS, RequestShell
from isochrone.gateway.requests.request import Request
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.settings.wire_limits import WireLimits

if TYPE_CHECKING:
    from isochrone.gateway.caller_requests import CallerStream

log = structlog.get_logger(__name__)

#: Seconds between sweeps over what is under way.
_SWEEP = 0.002
#: Seconds from a change to the rebuild of models that no request has asked for since: changes come in numbers.
_SETTLE = 0.02
#: Seconds between two ticks of the fleet: while something is under way, and while nothing is.
_REFRESH, _IDLE_REFRESH = LOOK_NS / SECOND, 1.0
#: Seconds until a timer goes on that has failed.
_AGAIN = 0.1
#: Requests given up or hedged in one turn of the loop: some 50 µs each.
_DUE_PER_TURN = 16


class Gateway(RequestShell):
    """What routes work with."""

    def __init__(
        self,
        rules: GatewayRules,
        limits: WireLimits,
        monitoring: MonitorRules | None = None,
        seed: int | None = None,
        clock: Callable[[], int] = now_ns,
    ) -> None:
        super().__init__(rules, limits, monitoring, seed, clock)
        #: What its fleet's controller must know to read samples; "": nobody may.
        self.control_token = ""
        #: In a fleet: whether what the store says is up to date.
        self.store_connected: Callable[[], bool] | None = None
        #: If this process is one of several that serve as one: whether all are ready, and how the others are asked to
        #: look at the workers again.
        self.others_ready: Callable[[], bool] | None = None
        self.refresh_others: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.stopping = False
        #: Its control plane wants nobody to send new requests here. What comes is served all the same.
        self.draining = False
        self._faults = Faults(self.fleet, clock)
        #: When outliers were last looked for.
        self._judged_at = clock()
        self._unsettled = asyncio.Event()
        self.fleet.rebuilds.on_due = self._unsettled.set
        if self.fleet.rebuilds.is_due:
            self._unsettled.set()

    # Members.

    def set_upstreams(self, source: str, upstreams: Sequence[Upstream]) -> None:
        """One source's upstreams are these from now on."""
        self._members.set_upstreams(source, upstreams)

    def is_healthy(self, upstream: Upstream) -> bool:
        member = self.fleet.members.get(upstream.address)
        return member is not None and member.endpoint.healthy

    def look_now(self) -> None:
        """A control call may have changed what is served."""
        self._members.look_now()

    async def models_changed(self) -> None:
        """A load or unload went through here: every process of this gateway learns what the workers serve now."""
        index_timeout = self.monitoring.index_timeout
        await asyncio.gather(
            self.read_indexes(index_timeout), *([self.refresh_others()] if self.refresh_others else ())
        )

    async def read_indexes(self, seconds: float) -> None:
        """Returns when it is known what every worker serves now, or after so long: one may be hanging."""
        await self._members.read_indexes(seconds)

    # Answers of its own.

    @property
    def is_leaving(self) -> bool:
        """Whoever balances over gateways should choose another one."""
        return self.stopping or self.draining

    @property
    def is_ready(self) -> bool:
        return self.is_ready_here and (self.others_ready is None or self.others_ready())

    @property
    def is_ready_here(self) -> bool:
        """Of this process, if it is one of several."""
        # Led by a control plane, a gateway is of no use before it knows what is committed.
        told = self.fleet.epoch or not self.fleet.is_led
        # Requests must come for a pool that was scaled to zero to wake up.
        takes_requests = bool(self.fleet.healthy) or self.fleet.rules.has_waiting_rooms
        is_recorded = self.audit is None or self.audit.is_writable
        return not self.is_leaving and bool(told) and takes_requests and is_recorded

    def is_model_ready(self, model: str, version: str) -> bool:
        if self.fleet.is_led:
            committed = self.fleet.committed.get(model)
            if committed is None or (version and version not in committed.digests):
                return False
            served = self.fleet.model(model)
            return not served.unserved(served.replica_set(version) if version else served.current)
        return any(
            version in served if version else bool(served)
            for member in self.fleet.healthy
            for served in ((member.serves or {}).get(model, {}),)
        )

    def unserved(self) -> dict[str, str]:
        """Committed models of which a request would not be answered now, and why."""
        return finished(self._faults.find_unserved())

    async def find_unserved(self) -> dict[str, str]:
        """The same, in turns of the loop."""
        return await self.housekeeping.do(self._faults.find_unserved())

    def worker_faults(self) -> dict[str, str]:
        """By address: workers that get no requests now, or none for some models, and why."""
        return finished(self._faults.find_worker_faults())

    async def find_worker_faults(self) -> dict[str, str]:
        """The same, in turns of the loop."""
        return await self.housekeeping.do(self._faults.find_worker_faults())

    def evaluations(self) -> dict[str, EvaluationReport]:
        """Counts of versions under evaluation, by model."""
        return {
            name: served.evaluation.report()
            for name, served in self.fleet.models.items()
            if served.evaluation is not None
        }

    def sample(self, model: str) -> SampleReport | None:
        """Live requests of a model; asking keeps sampling on for a while."""
        return self.sampling.ask(model, self.clock()) if model in self.fleet.models else None

    @property
    def in_flight(self) -> int:
        """Requests that are not answered yet."""
        return len({*self.machine.open, *self.streams, *self.machine.waiting})

    # By the clock.

    async def run(self) -> None:
        """What happens by the clock, until cancelled."""
        timers = [
            asyncio.ensure_future(self._keep(what, timer))
            for what, timer in (
                ("sweep", self._keep_sweeping),
                ("refresh", self._keep_refreshed),
                ("rebuild", self._keep_settled),
            )
        ]
        try:
            await asyncio.gather(*timers)
        finally:
            for timer in timers:
                timer.cancel()

    async def _keep(self, what: str, timer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await timer()
            except Exception as error:
                # A timer that ended would leave deadlines, ejections or models as they are for ever.
                log.error("a timer of the gateway failed unexpectedly", timer=what, exc_info=error)
                await asyncio.sleep(_AGAIN)

    async def _keep_sweeping(self) -> None:
        while True:
            await self._pause()
            await in_turns(self._sweep(self.clock()))

    async def _keep_refreshed(self) -> None:
        # Apart from the sweep: where there are thousands of models it takes many turns, and deadlines must not wait.
        while True:
            await self._pause_refreshing()
            await self.housekeeping.do(self.fleet.tick(self.clock()))
            now = self.clock()
            self.execute(self.machine.sweep(now))
            if now - self._judged_at >= self.outliers.rules.interval_ns:
                self._judged_at = now
                self.judge(now)

    async def _pause_refreshing(self) -> None:
        """Until the next tick of the fleet. Requests that come one by one end many rests: ticks stay apart."""
        if self.resting is not None:
            ended, _ = await asyncio.wait((self.resting,), timeout=_IDLE_REFRESH)
            if not ended:
                return
        await asyncio.sleep(_REFRESH)

    async def _keep_settled(self) -> None:
        while True:
            await self._unsettled.wait()
            await asyncio.sleep(_SETTLE)
            # Before the work: what is outdated meanwhile sets it again.
            self._unsettled.clear()
            try:
                await self.settle()
            finally:
                if self.fleet.rebuilds.is_due:
                    self._unsettled.set()

    async def settle(self) -> None:
        """Bring every model up to date with what is known of the endpoints and with what is committed."""
        await self.housekeeping.do(self._settle())

    def _settle(self) -> Steps[None]:
        for _ in self.fleet.rebuilds.steps():
            self._freezer.made(self.fleet.endpoint_changes.replicas_made)
            yield

    def sweep(self, now: int) -> None:
        """Every few ms while something is under way: requests that are due."""
        for _ in self._sweep(now):
            pass

    def _sweep(self, now: int) -> Iterator[None]:
        """The same; yields between two turns of the loop: thousands may be due at once, and each is answered."""
        if self.machine.open:
            for number, request in enumerate(self.machine.take_due(now), 1):
                self._due(request, now)
                if not number % _DUE_PER_TURN:
                    yield
        if self.streams and now >= self._streams_due:
            self._streams_due = min(stream.deadline for stream in self.streams)
            expired = [one for one in self.streams if now >= one.deadline and one not in self.machine.open]
            for number, stream in enumerate(expired, 1):
                self._expire(stream)
                if not number % _DUE_PER_TURN:
                    yield
        if self.fleet.holding:
            self.execute(self.machine.expire_held(now))
        if len(self.machine.waiting):
            while instructions := self.machine.expire_waiting(now):
                self.execute(instructions)
                yield
            self.execute(self.machine.go_on_waiting(now))

    def refresh(self, now: int) -> None:
        """Ten times a second while something is under way, else once a second: eligible replicas, counts, suspects."""
        self.fleet.refresh(now)
        self.execute(self.machine.sweep(now))

    def judge(self, now: int) -> None:
        """Every ``OutlierRules.interval_ns``: outliers, samples, agents."""
        self.sampling.sweep(now)
        self.fleet.agents.age(now)
        for ejection in self.outliers.tick(now):
            self.fleet.ejected(ejection)

    async def _pause(self) -> None:
        """Until the next sweep: a few ms from now or, while nothing can be due, from when something is under way."""
        if not self._is_under_way():
            self.resting = asyncio.get_running_loop().create_future()
            try:
                await self.resting
            finally:
                self.resting = None
        await asyncio.sleep(_SWEEP)

    def _is_under_way(self) -> bool:
        """Whether anything has a deadline, or waits. Whatever adds to these calls ``wake``."""
        machine = self.machine
        return bool(machine.open or self.streams or machine.held or len(machine.waiting))

    def _due(self, request: Request, now: int) -> None:
        self._guarded(request, partial(self.machine.due, request, now))

    def _expire(self, stream: CallerStream) -> None:
        try:
            stream.expire()
        except Exception as error:
            log.error("a stream failed unexpectedly", exc_info=error)
            self.streams.discard(stream)
            self._abort(stream)

    async def close(self) -> None:
        """Stop the monitors and give up the requests in flight."""
        for request in list(self.machine.open):
            self.execute(self.machine.cancelled(request, self.clock()))
        self._tasks.cancel()
        await self._members.close()
