"""One gateway process's heart: the fleet, the requests under way, and what happens by the clock.

Every few ms it looks at requests whose time may be up or that may be hedged; ten times a second at who is eligible;
once a second at outliers. One sweep over what is in flight costs less than a timer per request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.gateway.fleet import Fleet, Member
from isochrone.gateway.lost_workers import LostWorkers
from isochrone.gateway.monitor import Monitor, MonitorRules
from isochrone.gateway.replicas import Endpoint
from isochrone.gateway.resilience.outliers import Outliers
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.sampling import SampleReport, Sampling
from isochrone.gateway.serving import mismatch
from isochrone.gateway.trials import TrialReport
from isochrone.gateway.upstreams import Upstream
from isochrone.settings.wire_limits import WireLimits

if TYPE_CHECKING:
    from isochrone.gateway.forwarding import Forward
    from isochrone.gateway.grpc_pipe import GrpcPipe

log = structlog.get_logger()

#: Seconds between sweeps over what is under way, and between looks whether anything is.
_SWEEP = 0.002
_IDLE_SWEEP = 0.01
_REFRESH_NS = 100 * MILLISECOND


class Gateway:
    """What routes work with."""

    def __init__(
        self, rules: GatewayRules, limits: WireLimits, monitoring: MonitorRules | None = None, seed: int | None = None
    ) -> None:
        self.limits = limits
        self.outliers = Outliers(rules.outliers)
        self.fleet = Fleet(rules, limits, self.outliers, seed)
        #: Of live requests, while somebody asks for them.
        self.sampling = Sampling()
        #: What its fleet's controller must know to read them; "": nobody may.
        self.control_token = ""
        #: Unary requests and streams under way.
        self.forwards: set[Forward] = set()
        self.pipes: set[GrpcPipe] = set()
        self.lost_workers = LostWorkers(self)
        self.stopping = False
        #: Its control plane wants nobody to send new requests here. What comes is served all the same.
        self.draining = False
        self._monitoring = monitoring or MonitorRules()
        self._monitors: dict[str, Monitor] = {}
        #: By source: what it last named.
        self._named: dict[str, tuple[Upstream, ...]] = {}
        self._tasks = BackgroundTasks()
        #: Done when a request comes while the sweep rests; None: it does not rest.
        self.resting: asyncio.Future[None] | None = None

    # Members.

    def set_upstreams(self, source: str, upstreams: Sequence[Upstream]) -> None:
        """One source's upstreams are these from now on."""
        self._named[source] = tuple(upstreams)
        new, gone = self.fleet.set_members(upstream for named in self._named.values() for upstream in named)
        for member in gone:
            monitor = self._monitors.pop(member.upstream.address)
            self._tasks.start(self._retire(member, monitor))
        for member in new:
            self._monitors[member.upstream.address] = Monitor(member, self.fleet, self._monitoring, self._member_lost)
        self.outliers.endpoints_changed((member.endpoint for member in self.fleet.members.values()), now_ns())
        if new or gone:
            log.info(
                "upstreams changed",
                added=[member.upstream.address for member in new],
                removed=[member.upstream.address for member in gone],
            )

    async def _retire(self, member: Member, monitor: Monitor) -> None:
        """A member that was removed finishes what it has; nothing new goes there."""
        await monitor.stop()
        for _ in range(600):
            if not member.endpoint.in_flight:
                break
            await asyncio.sleep(0.1)
        member.close()

    def look_now(self) -> None:
        """A control call may have changed what is served."""
        for monitor in self._monitors.values():
            monitor.look_now()

    async def read_indexes(self, seconds: float) -> None:
        """Returns when it is known what every worker serves now, or after so long: one may be hanging."""
        reading = [asyncio.ensure_future(monitor.read_index()) for monitor in self._monitors.values()]
        if reading:
            _, late = await asyncio.wait(reading, timeout=seconds)
            for task in late:
                task.cancel()

    def look_at(self, address: str, now: int) -> None:
        """A worker answered as if it served something else than is known here."""
        monitor = self._monitors.get(address)
        if monitor is not None:
            monitor.look_soon(now)

    def process_gone(self, address: str) -> None:
        """A worker's process has ended: nothing more is sent there until it answers health checks again."""
        monitor = self._monitors.get(address)
        if monitor is not None:
            monitor.process_gone()

    def foreign_answer(self, endpoint: Endpoint, reason: str, now: int) -> None:
        """An endpoint answered a request with something that is not the protocol's: what serves there now?"""
        member: Member = endpoint.handle
        member.foreign_answers += 1
        if now - member.foreign_at > SECOND:
            member.foreign_at = now
            log.warning("a worker's answer is not the protocol's", worker=endpoint.address, reason=reason)
        self.look_at(endpoint.address, now)

    def _member_lost(self, member: Member) -> None:
        """It does not answer health checks: what is under way there goes elsewhere, where it may."""
        for forward in list(self.forwards):
            forward.endpoint_lost(member.endpoint)
        for pipe in list(self.pipes):
            pipe.endpoint_lost(member.endpoint)

    # Answers of its own.

    @property
    def is_leaving(self) -> bool:
        """Whoever balances over gateways should choose another one."""
        return self.stopping or self.draining

    @property
    def is_ready(self) -> bool:
        # Led by a control plane, a gateway is of no use before it knows what is committed.
        told = self.fleet.epoch or not self.fleet.is_led
        return not self.is_leaving and bool(told) and bool(self.fleet.healthy)

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
        found = {}
        for name in self.fleet.committed:
            served = self.fleet.models.get(name)
            reason = served.unserved(served.current) if served is not None else ""
            if reason:
                found[name] = reason
        return found

    def worker_faults(self) -> dict[str, str]:
        """By address: workers that get no requests now, or none for some models, and why."""
        now = now_ns()
        found = {}
        for address, member in self.fleet.members.items():
            if member.fault:
                found[address] = member.fault
            elif member.endpoint.ejected_until > now:
                found[address] = "left out as an outlier: it fails or is slow beside the others"
            elif differs := mismatch(member.serves or {}, self.fleet.committed):
                found[address] = differs
        return found

    def trials(self) -> dict[str, TrialReport]:
        """Counts of versions under trial, by model."""
        return {name: served.trial.report() for name, served in self.fleet.models.items() if served.trial is not None}

    def sample(self, model: str) -> SampleReport | None:
        """Live requests of a model; asking keeps sampling on for a while."""
        return self.sampling.ask(model, now_ns()) if model in self.fleet.models else None

    @property
    def in_flight(self) -> int:
        return len(self.forwards) + len(self.pipes)

    # By the clock.

    async def run(self) -> None:
        """Sweeps until cancelled."""
        refreshed = outliers_at = now_ns()
        while True:
            await self._pause()
            now = now_ns()
            if self.forwards:
                for forward in [one for one in self.forwards if now >= one.look_at]:
                    self._look(forward, now)
            if self.pipes:
                for pipe in [one for one in self.pipes if now >= one.deadline]:
                    self._look(pipe, now)
            if self.fleet.holding:
                self.fleet.expire_held(now)
            if now - refreshed >= _REFRESH_NS:
                refreshed = now
                self.fleet.refresh(now)
                self.lost_workers.sweep(now)
            if now - outliers_at >= SECOND:
                outliers_at = now
                self.sampling.sweep(now)
                for ejection in self.outliers.tick(now):
                    log.warning("a worker is left out", worker=ejection.endpoint.address, reason=ejection.reason)

    async def _pause(self) -> None:
        """Until the next sweep. The first request after a rest begins a short pause: its time may be shorter than the
        rest."""
        if not self.forwards and not self.pipes:
            self.resting = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(_IDLE_SWEEP):
                    await self.resting
            except TimeoutError:
                return
            finally:
                self.resting = None
        await asyncio.sleep(_SWEEP)

    def wake(self) -> None:
        """A request has come while the sweep rests."""
        if self.resting is not None and not self.resting.done():
            self.resting.set_result(None)

    def _look(self, one: Forward | GrpcPipe, now: int) -> None:
        try:
            one.look(now)
        except Exception as error:
            # A fault of ours with one request must not end the sweep: all others' deadlines hang on it.
            log.error("a request failed unexpectedly", exc_info=error)
            self.forwards.discard(one)
            self.pipes.discard(one)

    async def close(self) -> None:
        """Ends the watches and gives up what is still under way."""
        for forward in list(self.forwards):
            forward.abandoned()
        await self.lost_workers.close()
        await asyncio.gather(*(monitor.stop() for monitor in self._monitors.values()))
        self._tasks.cancel()
        for member in self.fleet.members.values():
            member.close()
