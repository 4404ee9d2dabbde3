"""The gateway's shell: executes the instructions of the request machine, and calls it by the clock.

Codecs and connections report events; the machine decides; the shell sends, answers, cancels, probes and checks. Every
few ms it calls the machine for requests that are due, ten times a second it looks for changes of endpoints and collects
counts, once a second it looks for outliers. A sweep that looks only when a request may be due costs less than a timer
per request. What may be long is done in steps, each in a turn of the loop of its own: requests go on between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import Internal, IsochroneError, NotFound
from isochrone.gateway.evaluation.counts import EvaluationReport
from isochrone.gateway.evaluation.sampling import SampleReport, Sampling
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.fleet.member import Member
from isochrone.gateway.fleet.mismatches import Mismatches
from isochrone.gateway.garbage import ReplicaFreezer
from isochrone.gateway.housekeeping import Housekeeping, Steps, finished, in_turns
from isochrone.gateway.monitoring.indexes import Indexes
from isochrone.gateway.monitoring.monitor import Monitor, MonitorRules, is_alive
from isochrone.gateway.monitoring.probes import probe
from isochrone.gateway.replicas import Endpoint
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.machine import CheckedLoss, Destination, RequestMachine
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.request import Request
from isochrone.gateway.requests.suspected import ADVICE, Quarantining
from isochrone.gateway.resilience.conformance import ForeignAnswer
from isochrone.gateway.resilience.outliers import Outliers
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.settings.wire_limits import WireLimits

if TYPE_CHECKING:
    from isochrone.gateway.caller_requests import CallerRequest, CallerStream, UpstreamAttempt

log = structlog.get_logger(__name__)

#: Seconds between sweeps over what is under way, and between looks whether anything is.
_SWEEP = 0.002
_IDLE_SWEEP = 0.01
#: Seconds between looks whether models are outdated that no request has asked for.
_SETTLE = 0.02
#: Seconds between two ticks of the fleet.
_REFRESH = 0.1
#: Requests given up or hedged in one turn of the loop: some 50 µs each.
_DUE_PER_TURN = 16
#: Requests that leave a lost endpoint in one turn, and the time after which no further one does: one takes 50 µs, where
#: a model of many replicas is looked at first 0.5 ms. And requests in flight that are searched for them: 0.3 µs each.
_LEAVING_PER_TURN, _LEAVING_NS, _SEARCHED_PER_TURN = 16, MILLISECOND // 2, 1024
#: Models looked at in one turn of the loop: some 4 µs each; one that is rebuilt first takes as long as many others.
_LOOKED_AT_PER_TURN, _REBUILT = 64, 32
#: The index of a worker of which none is known.
_NOTHING: Mapping[str, Mapping[str, str]] = {}
#: Workers asked for their index at a time, how often that is done at most, and seconds after which one that hangs no
#: longer keeps the others waiting.
_FEWEST_AT_A_TIME, _MOST_TIMES, _PAUSE_FOR_HANGING = 4, 25, 0.01
_SEND, _ANSWER, _REJECT, _CANCEL, _CUT_OFF = Do.SEND, Do.ANSWER, Do.REJECT, Do.CANCEL, Do.CUT_OFF
_ANSWERED, _FOREIGN, _NOT_BEGUN, _REJECTED = (
    Outcome.ANSWERED,
    Outcome.FOREIGN,
    Outcome.NOT_BEGUN,
    Outcome.REJECTED,
)


class Gateway:
    """What routes work with."""

    def __init__(
        self,
        rules: GatewayRules,
        limits: WireLimits,
        monitoring: MonitorRules | None = None,
        seed: int | None = None,
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self.clock = clock
        self.limits = limits
        self.outliers = Outliers(rules.outliers)
        self.fleet = Fleet(rules, limits, self.outliers, seed, clock=clock)
        #: Of live requests, while somebody asks for them.
        self.sampling = Sampling()
        #: What its fleet's controller must know to read them; "": nobody may.
        self.control_token = ""
        self.machine = RequestMachine(self.fleet)
        #: Streaming calls, from their opening to their end.
        self.streams: set[CallerStream] = set()
        #: No stream's deadline passes before this instant.
        self._streams_due = 0
        #: Called with what happened, the model it is about, and a sentence: for the fleet's events.
        self.on_event: Callable[[str, str, str], None] | None = None
        #: If this process is one of several that serve as one: whether all are ready, and how the others are asked to
        #: look at the workers again.
        self.others_ready: Callable[[], bool] | None = None
        self.refresh_others: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.stopping = False
        #: Its control plane wants nobody to send new requests here. What comes is served all the same.
        self.draining = False
        self.monitoring = monitoring or MonitorRules()
        self._monitors: dict[str, Monitor] = {}
        self._mismatches = Mismatches()
        self._freezer = ReplicaFreezer()
        #: What may be long is done here, a step per turn of the loop.
        self.housekeeping = Housekeeping()
        self._indexes = Indexes(self.housekeeping)
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
            self._freezer.left()
            self._tasks.start(self._retire(member, monitor))
        for number, member in enumerate(new):
            # One after the other: a pool that joins must not be asked in one turn of the loop.
            delay = number / self.monitoring.most_per_second
            self._monitors[member.upstream.address] = Monitor(
                member, self.fleet, self.monitoring, self._member_lost, self._indexes, delay
            )
        self.outliers.endpoints_changed((member.endpoint for member in self.fleet.members.values()), self.clock())
        if new or gone:
            log.info(
                "upstreams changed",
                added=[member.upstream.address for member in new],
                removed=[member.upstream.address for member in gone],
            )

    def is_healthy(self, upstream: Upstream) -> bool:
        member = self.fleet.members.get(upstream.address)
        return member is not None and member.endpoint.healthy

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

    async def models_changed(self) -> None:
        """A load or unload went through here: every process of this gateway learns what the workers serve now."""
        index_timeout = self.monitoring.index_timeout
        await asyncio.gather(
            self.read_indexes(index_timeout), *([self.refresh_others()] if self.refresh_others else ())
        )

    async def read_indexes(self, seconds: float) -> None:
        """Returns when it is known what every worker serves now, or after so long: one may be hanging."""
        monitors = list(self._monitors.values())
        # A few at a time: their answers may be long, and must not all come in the same turn of the loop.
        few = max(_FEWEST_AT_A_TIME, len(monitors) // _MOST_TIMES)
        late: set[asyncio.Future[None]] = set()
        ends = asyncio.get_running_loop().time() + seconds
        for start in range(0, len(monitors), few):
            late |= {asyncio.ensure_future(monitor.read_index()) for monitor in monitors[start : start + few]}
            _, late = await asyncio.wait(late, timeout=_PAUSE_FOR_HANGING)
        if late:
            _, late = await asyncio.wait(late, timeout=max(0.0, ends - asyncio.get_running_loop().time()))
            for task in late:
                task.cancel()

    def look_at(self, address: str, now: int) -> None:
        """A worker answered as if it served something else than is known here."""
        monitor = self._monitors.get(address)
        if monitor is not None:
            monitor.look_soon(now)

    def _member_lost(self, member: Member) -> None:
        # It is not healthy any more, so nothing is placed there from now on; what it has may be long to move.
        if member.endpoint.in_flight:
            self._tasks.start(in_turns(self._leave(member.endpoint, self.clock())))

    def _leave(self, endpoint: Endpoint, lost_at: int) -> Steps[None]:
        """Requests in flight at an endpoint that was lost go elsewhere where they may."""
        machine = self.machine
        left, began = 0, self.clock()
        for number, request in enumerate(list(machine.open), 1):
            if not request.over and machine.is_at(request, endpoint, lost_at):
                if left >= _LEAVING_PER_TURN or self.clock() - began > _LEAVING_NS:
                    yield
                    left, began = 0, self.clock()
                self._guarded(request, partial(machine.leave_lost, request, endpoint, lost_at, self.clock()))
                left += 1
            if not number % _SEARCHED_PER_TURN:
                yield
                left, began = 0, self.clock()

    # Events.

    def stream_opened(self, stream: CallerStream) -> None:
        """A streaming call begins; its first message may be a while away."""
        self.streams.add(stream)
        self._streams_due = min(self._streams_due, stream.deadline)

    def arrive(self, request: CallerRequest) -> None:
        """A codec has read a request."""
        if self.resting is not None:
            self.wake()
        if self.sampling.on:
            self._offer(request)
        self.execute(self.machine.arrive(request, request.arrived))

    def _offer(self, request: CallerRequest) -> None:
        samples = self.sampling.on.get(request.served.name)
        if samples is not None and request.kind is Kind.STATELESS:
            request.offer(samples)

    def answered(self, attempt: UpstreamAttempt) -> None:
        """An endpoint's answer is whole."""
        if attempt.over:
            return
        request: CallerRequest = attempt.request  # type: ignore[assignment]
        outcome = request.outcome(attempt)
        if outcome is _FOREIGN:
            self.answered_foreign(attempt)
            return
        if outcome is _ANSWERED and not attempt.asks:
            # Nearly all answers.
            self.execute(self.machine.answered(request, attempt, outcome, self.clock()))
            return
        report = request.load_report(attempt) if attempt.asks else None
        is_rejected = outcome is _NOT_BEGUN or outcome is _REJECTED
        is_version_gone = is_rejected and request.is_version_gone(attempt)
        self.execute(self.machine.answered(request, attempt, outcome, self.clock(), report, is_version_gone))

    def answered_foreign(self, attempt: UpstreamAttempt) -> None:
        """An endpoint's answer does not follow the protocol: it counts as none, and is never passed on."""
        self.lost(attempt, ForeignAnswer(f"its answer is not the Open Inference Protocol's: {attempt.foreign}"))

    def lost(self, attempt: UpstreamAttempt, error: IsochroneError) -> None:
        """A connection broke, or was never made."""
        if not attempt.over:
            self.execute(self.machine.lost(attempt.request, attempt, error, self.clock()))

    def streaming(self, attempt: UpstreamAttempt) -> None:
        """An answer is being passed on."""
        self.execute(self.machine.streaming(attempt.request, attempt, self.clock()))

    def cancelled(self, request: CallerRequest) -> None:
        """A caller has gone."""
        self.execute(self.machine.cancelled(request, self.clock()))

    def release(self) -> int:
        """A strict switch is over: requests that waited for it go on; how many."""
        waiting = self.machine.held
        self.execute(self.machine.release(self.clock()))
        return waiting

    def reject_held(self, reason: str) -> None:
        """A strict switch takes too long for the requests that wait for it."""
        self.execute(self.machine.reject_held(reason, self.clock()))

    # Instructions.

    def execute(self, instructions: list[Instruction]) -> None:
        caller: Any
        for do, caller, subject in instructions:
            try:
                if do is _SEND:
                    caller.send(subject)
                elif do is _ANSWER:
                    caller.answer(subject)
                elif do is _CANCEL:
                    subject.cancel()
                elif do is _REJECT:
                    caller.reject(subject)
                elif do is _CUT_OFF:
                    caller.cut_off(subject)
                else:
                    self._execute_rare(do, caller, subject)
            except Exception as error:
                # A fault of ours with one request must not touch the others.
                log.error("an instruction failed unexpectedly", instruction=do.name, exc_info=error)
                if do is _SEND:
                    self.lost(subject, Internal(f"{type(error).__name__}: {error}"))
                elif do is _ANSWER or do is _REJECT or do is _CUT_OFF:
                    self._abort(caller)

    def _abort(self, caller: CallerRequest) -> None:
        """A caller that cannot be answered must not wait for ever."""
        try:
            caller.abort()
        except Exception as error:
            log.error("a caller could not be cut off", exc_info=error)

    def _execute_rare(self, do: Do, request: CallerRequest | None, subject: Any) -> None:
        if do is Do.PROBE:
            probe(self.fleet, subject, self.clock())
        elif do is Do.LOOK:
            self.look_at(subject.address, self.clock())
        elif do is Do.COPY:
            self._copy(cast("CallerRequest", request), subject)
        elif do is Do.FOREIGN:
            self._foreign_answer(subject.replica.endpoint, subject.foreign)
        elif do is Do.CHECK:
            self._tasks.start(self._check(subject))
        elif do is Do.GONE:
            self._process_gone(subject)
        elif do is Do.QUARANTINED:
            self._quarantined(subject)
        elif do is Do.RESUME:
            cast("CallerStream", request).resume()

    def _copy(self, request: CallerRequest, to: Destination) -> None:
        copy = request.copy(to.served)
        self.execute(self.machine.arrive_copy(copy, to, copy.arrived))

    def _foreign_answer(self, endpoint: Endpoint, reason: str) -> None:
        member: Member = endpoint.handle
        now = self.clock()
        member.foreign_answers += 1
        if now - member.foreign_at > SECOND:
            member.foreign_at = now
            log.warning("a worker's answer is not the protocol's", worker=endpoint.address, reason=reason)
        self.look_at(endpoint.address, now)

    async def _check(self, endpoint: Endpoint) -> None:
        lives = True
        try:
            lives = await is_alive(endpoint.handle.upstream, self.monitoring.timeout)
        except Exception as error:
            # Requests that wait for the result must not wait for ever.
            log.error("checking a worker failed unexpectedly", worker=endpoint.address, exc_info=error)
        instructions, losses = self.machine.take_check(endpoint, lives, self.clock())
        self.execute(instructions)
        await in_turns(self._go_on(losses))
        self.execute(self.machine.pump(self.clock()))

    def _go_on(self, losses: Sequence[CheckedLoss]) -> Steps[None]:
        """Requests whose connections broke are sent again, or given up."""
        left, began = 0, self.clock()
        for loss in losses:
            if left >= _LEAVING_PER_TURN or self.clock() - began > _LEAVING_NS:
                yield
                left, began = 0, self.clock()
            self._guarded(loss.loss.request, partial(self.machine.go_on, loss, self.clock()))
            left += 1

    def _process_gone(self, endpoint: Endpoint) -> None:
        log.warning("a worker's process is gone", worker=endpoint.address)
        monitor = self._monitors.get(endpoint.address)
        if monitor is not None and endpoint.handle is self.fleet.members.get(endpoint.address):
            monitor.process_gone()

    def _quarantined(self, case: Quarantining) -> None:
        fingerprint = case.key.fingerprint.hex()
        log.warning(
            "a request is quarantined",
            model=case.key.model,
            version=case.key.version,
            fingerprint=fingerprint,
            workers=case.workers,
            seconds=case.seconds,
        )
        if self.on_event is not None:
            which = f"version {case.key.version or 'unnamed'}, fingerprint {fingerprint}"
            where = f"in flight when processes at {', '.join(case.workers)} were lost"
            self.on_event(
                "request quarantined",
                case.key.model,
                f"{which}: {where}; rejected for {case.seconds:g} s; {ADVICE}",
            )

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
        return finished(self._find_unserved())

    async def find_unserved(self) -> dict[str, str]:
        """The same, in turns of the loop."""
        return await self.housekeeping.do(self._find_unserved())

    def _find_unserved(self) -> Steps[dict[str, str]]:
        found: dict[str, str] = {}
        looked = 0
        for name in list(self.fleet.committed):
            try:
                served = self.fleet.model(name)
            except NotFound:
                continue  # more models than a gateway serves, or not committed any more
            looked += _REBUILT if served.outdated else 1
            reason = served.unserved(served.current)
            if reason:
                found[name] = reason
            if looked >= _LOOKED_AT_PER_TURN:
                looked = 0
                yield
        return found

    def worker_faults(self) -> dict[str, str]:
        """By address: workers that get no requests now, or none for some models, and why."""
        return finished(self._find_worker_faults())

    async def find_worker_faults(self) -> dict[str, str]:
        """The same, in turns of the loop."""
        return await self.housekeeping.do(self._find_worker_faults())

    def _find_worker_faults(self) -> Steps[dict[str, str]]:
        now = self.clock()
        found: dict[str, str] = {}
        for address, member in list(self.fleet.members.items()):
            if member.fault:
                found[address] = member.fault
                continue
            if member.endpoint.ejected_until > now:
                found[address] = "left out as an outlier: it fails or is slow beside the others"
                continue
            serves = member.serves or _NOTHING
            if not self._mismatches.knows(serves, self.fleet.committed):
                # Every model of an index is compared: some 0.5 ms where there are a thousand.
                yield
            differs = self._mismatches.of(serves, self.fleet.committed)
            if differs:
                found[address] = differs
        return found

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
        return len(self.machine.open.keys() | self.streams)

    # By the clock.

    async def run(self) -> None:
        """What happens by the clock, until cancelled."""
        await asyncio.gather(self._keep_sweeping(), self._keep_refreshed(), self._keep_settled())

    async def _keep_sweeping(self) -> None:
        outliers_at = self.clock()
        while True:
            await self._pause()
            now = self.clock()
            await in_turns(self._sweep(now))
            if now - outliers_at >= SECOND:
                outliers_at = now
                self.judge(now)

    async def _keep_refreshed(self) -> None:
        # Apart from the sweep: where there are thousands of models it takes many turns, and deadlines must not wait.
        while True:
            await asyncio.sleep(_REFRESH)
            await self.housekeeping.do(self.fleet.tick(self.clock()))
            self.execute(self.machine.sweep(self.clock()))

    async def _keep_settled(self) -> None:
        while True:
            await asyncio.sleep(_SETTLE)
            if self.fleet.is_unsettled:
                await self.settle()

    async def settle(self) -> None:
        """Bring every model up to date with what is known of the endpoints and with what is committed."""
        await self.housekeeping.do(self._settle())

    def _settle(self) -> Steps[None]:
        for _ in self.fleet.settle():
            self._freezer.made(self.fleet.endpoint_changes.replicas_made)
            yield

    def sweep(self, now: int) -> None:
        """Every few ms: requests that are due."""
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

    def refresh(self, now: int) -> None:
        """Ten times a second: eligible replicas, counts, suspects."""
        self.fleet.refresh(now)
        self.execute(self.machine.sweep(now))

    def judge(self, now: int) -> None:
        """Once a second: outliers, samples."""
        self.sampling.sweep(now)
        for ejection in self.outliers.tick(now):
            self.fleet.ejected(ejection)

    async def _pause(self) -> None:
        """Until the next sweep. The first request after a rest begins a short pause: its time may be shorter than the
        rest."""
        if not self.machine.open and not self.streams:
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

    def _due(self, request: Request, now: int) -> None:
        self._guarded(request, partial(self.machine.due, request, now))

    def _guarded(self, request: Request, event: Callable[[], list[Instruction]]) -> None:
        try:
            self.execute(event())
        except Exception as error:
            # A fault of ours with one request must not end the sweep: all others' deadlines hang on it.
            log.error("a request failed unexpectedly", exc_info=error)
            self.machine.open.pop(request, None)
            request.over = True
            self._abort(cast("CallerRequest", request))

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
        await asyncio.gather(*(monitor.stop() for monitor in self._monitors.values()))
        await self._indexes.close()
        for member in self.fleet.members.values():
            member.close()
