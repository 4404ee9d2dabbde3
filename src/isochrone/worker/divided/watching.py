"""Watches the link and the stages of a divided model, and moves its present division. On the loop's thread.

A timer looks a few times a second. Requests report the times of their stages, and remote models what crosses the link.
A request for readiness at each look tells the round trip and whether the core answers, also when no request crosses. A
larger probe tells the bandwidth, now and then, and at once when the round trip has changed much. A core that did not
answer several times in a row is lost: divisions that need it are not offered until it answers again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.clock import SECOND, now_ns
from isochrone.errors import IsochroneError
from isochrone.models.divisions import CORE, EDGE, SPLIT, Division, Link
from isochrone.worker.divided.estimates import StageTimes, Times, division_times
from isochrone.worker.divided.probes import ProbeRequest, probe_interval, probe_size, send_probe
from isochrone.worker.divided.replanning import Move, Replanner
from isochrone.worker.ensembles.runner import EnsembleRunner
from isochrone.worker.remote.link import LARGE_BYTES, PROBE_BYTES, Crossing, LinkEstimator, UnderWay, is_another_link
from isochrone.worker.remote.runner import RemoteRunner

if TYPE_CHECKING:
    from isochrone.worker.divided.division_request import DivisionRequest
    from isochrone.worker.divided.settings import DividedSettings
    from isochrone.worker.ensembles.pins import Resolve
    from isochrone.worker.served_version import ServedVersion

log = structlog.get_logger(__name__)

#: Failures in a row, of requests and probes, after which the core is lost. Those that come together are one: a server
#: that dies breaks all connections at once.
_FAILURES = 3
#: A probe waits for this many round trips, within these seconds; after each one without an answer, twice as long: the
#: link may have become slower than any before.
_PROBE_ROUND_TRIPS = 10
_LEAST_PATIENCE, _MOST_PATIENCE = 0.5, 4.0
#: Of the bandwidth, within the interval of one, while the round trip keeps changing.
_MOST_PROBES = 10
#: Weight of a request in the mean number of rows.
_WEIGHT = 0.1


class DivisionWatch:
    """The watch of one version of a divided model."""

    def __init__(
        self, name: str, version: str, settings: DividedSettings, resolve: Resolve, core_lost: Callable[[], None]
    ) -> None:
        """``core_lost`` is called when the core has just been lost."""
        self._name, self._version = name, version
        self._settings = settings
        self._resolve = resolve
        self._core_lost = core_lost
        plan = settings.plan
        self._divisions = {each.name: each for each in plan.divisions}
        self._replanner = Replanner(plan.present, settings.rules, now_ns())
        self._estimator = LinkEstimator(plan.link)
        self._edge = StageTimes((each.name, each.edge_ns) for each in plan.divisions if each.name != CORE)
        self._core = StageTimes((each.name, each.core_ns) for each in plan.divisions if each.uses_link)
        #: Rows of a request, on average.
        self._rows = 1.0
        #: Remote model → its runner, and the division that it belongs to; the probe belongs to none.
        self._remote: dict[str, tuple[RemoteRunner, str]] = {}
        #: Remote models that the core does not serve, as it said.
        self._unserved: set[str] = set()
        self._failures = 0
        self._failed_at = 0
        #: Probes in a row without an answer, whatever became of requests, and the seconds that the first one waited.
        self._unanswered = 0
        self._patience = _LEAST_PATIENCE
        #: When the core was last lost: what was under way then waited for its return, and says nothing of the link.
        self._lost_at = 0
        self._probing: asyncio.Task[None] | None = None
        self._probing_since = 0
        self._turn = 0
        self._probe: ProbeRequest | None = None
        self._bandwidth_probed = 0
        #: The link when the bandwidth was last probed; None: it was lost since, and may be any other now.
        self._link_then: Link | None = plan.link
        #: Late ns of divisions with stages that take what is planned, without waits.
        self._unloaded: Mapping[str, float] = {}
        self._tasks = BackgroundTasks()
        self._timer: asyncio.Task[None] | None = None
        #: Times of the divisions that are offered, as of the last look.
        self.times: Mapping[str, Times] = {}
        self.link: Link = plan.link
        self.moves: Counter[str] = Counter()

    @property
    def present(self) -> str:
        return self._replanner.present

    @property
    def core_answers(self) -> bool:
        return self._failures < _FAILURES

    def start(self) -> None:
        self._look()
        self._timer = self._tasks.start(self._run())

    def stop(self) -> None:
        for task in (self._timer, self._probing):
            if task is not None:
                task.cancel()
        for runner, _ in self._remote.values():
            runner.link.unwatch(self)
        self._remote.clear()

    # Reports.

    def request_done(self, request: DivisionRequest, now: int) -> None:
        """The times of a request's stages on this machine, waits included."""
        self._rows += _WEIGHT * (request.original.plan.batch_size - self._rows)
        division = request.run_in.name
        if division == EDGE:
            self._edge.add(EDGE, now, now - request.arrived, max(0, request.compute_start - request.arrived))
        elif request.steps:
            own = sum(nanoseconds for model, nanoseconds in request.steps if model not in self._remote)
            self._edge.add(division, now, own)

    def crossed(self, model: str, crossing: Crossing) -> None:
        if not self.core_answers:
            self._link_then = None
        self._failures = 0
        if crossing.at - crossing.elapsed_ns >= self._lost_at:
            self._estimator.add(crossing)
        known = self._remote.get(model)
        if known is not None and known[1] and crossing.there_ns:
            self._core.add(known[1], crossing.at, crossing.there_ns)

    def unreachable(self, model: str) -> None:
        now = now_ns()
        if now - self._failed_at < self._settings.look_ns // 2:
            return
        self._failed_at = now
        self._failures += 1
        if self._failures == _FAILURES:
            self._lost_at = now
            log.warning("the core of a divided model does not answer", model=self._name, version=self._version)
            self._look()
            self._core_lost()

    # Looks.

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.look_ns / SECOND)
            try:
                self._look()
                self._send_probes()
            except Exception as error:
                # The next look must come.
                log.error("a look at a divided model failed", model=self._name, exc_info=error)

    def _look(self) -> None:
        now = now_ns()
        self._watch_links()
        core = self._core.look(now)
        self.link = link = self._estimator.link(now, self._under_way(core))
        offered = list(self._offered())
        edge = self._edge.look(now, {each.name: self._wait(each, now) for each in offered})
        self.times = {
            each.name: division_times(each, link, edge.get(each.name, 0.0), core.get(each.name, 0.0), self._rows)
            for each in offered
        }
        self._unloaded = {
            each.name: division_times(each, link, each.edge_ns, core.get(each.name, 0.0), self._rows).late
            for each in offered
        }
        move = self._replanner.look(now, {name: times.late for name, times in self.times.items()})
        if move is not None:
            self.moves[move.reason] += 1
            self._log(move)

    def _under_way(self, core: Mapping[str, float]) -> Iterator[UnderWay]:
        """Requests and probes that the core has not answered, of those that began since it was last lost."""
        for runner, name in self._remote.values():
            if name:
                division = self._divisions[name]
                size = round((division.sent_bytes + division.received_bytes) * self._rows)
                elsewhere = core.get(name, 0.0) + division.coding_ns * self._rows
                for began in runner.began():
                    if began >= self._lost_at:
                        yield UnderWay(began, size, elsewhere)
        if self._probe is not None and not self._probe.over and self._probe.arrived >= self._lost_at:
            yield UnderWay(self._probe.arrived, self._probe.size, 0.0)
        if self._probing is not None and not self._probing.done() and self._probing_since >= self._lost_at:
            yield UnderWay(self._probing_since, PROBE_BYTES, 0.0)

    def _wait(self, division: Division, now: int) -> int:
        """ns that a request would wait for this machine's stage."""
        served = self._served(division.model)
        if served is None or division.name == CORE:
            return 0
        own = [each.runner for each in _with_steps(served) if each.model_name not in self._remote]
        return max((each.estimated_wait(now) for each in own if not isinstance(each, EnsembleRunner)), default=0)

    def _offered(self) -> Iterator[Division]:
        for each in self._divisions.values():
            if self._served(each.model) is None:
                continue
            needed = [model for model, (_, division) in self._remote.items() if division == each.name]
            if each.uses_link and (not self.core_answers or not self._unserved.isdisjoint(needed)):
                continue
            yield each

    def _served(self, model: str) -> ServedVersion | None:
        try:
            return self._resolve(model, "")
        except IsochroneError:
            return None

    def _watch_links(self) -> None:
        """Versions may have been replaced since the last look."""
        found: dict[str, tuple[RemoteRunner, str]] = {}
        models = [(each.model, each.name) for each in self._divisions.values()]
        if self._settings.probe_model:
            models.append((self._settings.probe_model, ""))
        for model, division in models:
            served = self._served(model)
            for version in () if served is None else _with_steps(served):
                if isinstance(version.runner, RemoteRunner):
                    found[version.model_name] = version.runner, division
        for model, (runner, _) in self._remote.items():
            if model not in found or found[model][0] is not runner:
                runner.link.unwatch(self)
        for runner, _ in found.values():
            runner.link.watch(self)
        self._remote = found
        self._unserved &= found.keys()

    def _log(self, move: Move) -> None:
        link = self.link
        log.info(
            "division moved",
            model=self._name,
            version=self._version,
            origin=move.origin,
            target=move.target,
            reason=move.reason,
            late_ms={name: round(times.late / 1e6, 3) for name, times in self.times.items()},
            round_trip_ms=round(link.round_trip * 1e3, 3),
            jitter_ms=round(link.jitter * 1e3, 3),
            mbit_per_second=round(min(link.bytes_per_second * 8 / 1e6, 1e9), 3),
            core_answers=self.core_answers,
        )

    # Probes.

    def _send_probes(self) -> None:
        models = [model for model, (_, division) in self._remote.items() if division]
        if models and (self._probing is None or self._probing.done()):
            self._turn += 1
            self._probing_since = now_ns()
            model = models[self._turn % len(models)]
            self._probing = self._tasks.start(self._ask(model, self._remote[model][0]))
        if self.core_answers and (self._probe is None or self._probe.over):
            self._send_bandwidth_probe()

    def _send_bandwidth_probe(self) -> None:
        now, every = now_ns(), self._settings.probe_ns
        has_changed = self._link_then is None or is_another_link(self._link_then, self.link)
        is_due = now - max(self._estimator.bandwidth_seen, self._bandwidth_probed) >= probe_interval(self.link, every)
        if now - self._bandwidth_probed < every // _MOST_PROBES:
            return
        version = self._served(self._settings.probe_model) if self._settings.probe_model else None
        if version is not None and (has_changed or is_due):
            self._link_then, self._bandwidth_probed = self.link, now
            self._probe = send_probe(version, LARGE_BYTES if has_changed else probe_size(self.link, every))

    async def _ask(self, model: str, runner: RemoteRunner) -> None:
        if not self._unanswered:
            self._patience = max(_LEAST_PATIENCE, _PROBE_ROUND_TRIPS * self.link.round_trip)
        ready = await runner.probe(min(_MOST_PATIENCE, self._patience * 2 ** min(self._unanswered, 8)))
        self._unanswered = self._unanswered + 1 if ready is None else 0
        if ready:
            self._unserved.discard(model)
        elif ready is not None:
            self._unserved.add(model)

    # Choices.

    def best(self, kind: str) -> str | None:
        """The fastest division of a kind that is offered."""
        fitting = [name for name in self.times if kind in (name, SPLIT) and (kind == name or _is_cut(name))]
        return min(fitting, key=lambda name: self.times[name].late, default=None)

    def late_ns(self, kind: str) -> float | None:
        """None: no division of this kind is offered."""
        best = self.best(kind)
        if best is None:
            return None
        # The queue of the moment, which may be longer than at the last look.
        wait = self._wait(self._divisions[best], now_ns())
        return max(self.times[best].late, self._unloaded[best] + wait if wait else 0.0)


def _is_cut(name: str) -> bool:
    return name not in (EDGE, CORE)


def _with_steps(version: ServedVersion) -> Iterator[ServedVersion]:
    """A version, and those of its steps if it is an ensemble."""
    yield version
    if isinstance(version.runner, EnsembleRunner):
        for step in version.runner.step_versions():
            yield from _with_steps(step)
