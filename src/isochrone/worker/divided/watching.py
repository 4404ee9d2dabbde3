"""Watches the link and the stages of a divided model, and moves its present division. On the loop's thread.

A timer looks a few times a second. Requests report the times of their stages, and remote models what crosses the link.
A request for readiness at each look tells the round trip and whether the core answers, also when no request crosses;
a larger probe now and then tells the bandwidth. A core that did not answer several times in a row is lost: divisions
that need it are not offered until it answers again.
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
from isochrone.worker.remote.link import Crossing, LinkEstimator
from isochrone.worker.remote.runner import RemoteRunner

if TYPE_CHECKING:
    from isochrone.worker.divided.division_request import DivisionRequest
    from isochrone.worker.divided.settings import DividedSettings
    from isochrone.worker.ensembles.pins import Resolve
    from isochrone.worker.served_version import ServedVersion

log = structlog.get_logger(__name__)

#: Failures in a row, of requests and probes, after which the core is lost.
_FAILURES = 3
#: A probe waits for this many round trips, within these seconds; after each one without an answer, twice as long: the
#: link may have become slower than any before.
_PROBE_ROUND_TRIPS = 10
_LEAST_PATIENCE, _MOST_PATIENCE = 0.5, 4.0
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
        self._answered_at = 0
        #: Probes in a row without an answer, whatever became of requests.
        self._unanswered = 0
        #: When the core was last lost: what was under way then waited for its return, and says nothing of the link.
        self._lost_at = 0
        self._probing: asyncio.Task[None] | None = None
        self._turn = 0
        self._probe: ProbeRequest | None = None
        self._bandwidth_probed = 0
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
            self._edge.add(EDGE, now, now - request.arrived)
        elif request.steps:
            own = sum(nanoseconds for model, nanoseconds in request.steps if model not in self._remote)
            self._edge.add(division, now, own)

    def crossed(self, model: str, crossing: Crossing) -> None:
        self._failures = 0
        self._answered_at = crossing.at
        if crossing.at - crossing.elapsed_ns >= self._lost_at:
            self._estimator.add(crossing)
        known = self._remote.get(model)
        if known is not None and known[1] and crossing.there_ns:
            self._core.add(known[1], crossing.at, crossing.there_ns)

    def unreachable(self, model: str) -> None:
        self._failures += 1
        if self._failures == _FAILURES:
            self._lost_at = now_ns()
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
        self.link = link = self._estimator.link(now)
        edge, core = self._edge.look(now), self._core.look(now)
        self.times = {
            each.name: division_times(each, link, edge.get(each.name, 0.0), core.get(each.name, 0.0), self._rows)
            for each in self._offered()
        }
        move = self._replanner.look(now, {name: times.late for name, times in self.times.items()})
        if move is not None:
            self.moves[move.reason] += 1
            self._log(move)

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
            model = models[self._turn % len(models)]
            self._probing = self._tasks.start(self._ask(model, self._remote[model][0]))
        if self._probe is not None and self._probe.is_late:
            # If nothing else was answered meanwhile, the link was silent, which says nothing of its bandwidth.
            if self._answered_at > self._probe.deadline - SECOND:
                self._estimator.add(self._probe.given_up())
            self._probe = None
        now, wanted = now_ns(), probe_interval(self.link, self._settings.probe_ns)
        last = max(self._estimator.bandwidth_seen, self._bandwidth_probed)
        if not self.core_answers or now - last < wanted or (self._probe is not None and not self._probe.over):
            return
        version = self._served(self._settings.probe_model) if self._settings.probe_model else None
        if version is not None:
            self._bandwidth_probed = now
            self._probe = send_probe(version, probe_size(self.link, self._settings.probe_ns))

    async def _ask(self, model: str, runner: RemoteRunner) -> None:
        patience = max(_LEAST_PATIENCE, _PROBE_ROUND_TRIPS * self.link.round_trip) * 2 ** min(self._unanswered, 8)
        ready = await runner.probe(min(_MOST_PATIENCE, patience))
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
        return None if best is None else self.times[best].late


def _is_cut(name: str) -> bool:
    return name not in (EDGE, CORE)


def _with_steps(version: ServedVersion) -> Iterator[ServedVersion]:
    """A version, and those of its steps if it is an ensemble."""
    yield version
    if isinstance(version.runner, EnsembleRunner):
        for step in version.runner.step_versions():
            yield from _with_steps(step)
