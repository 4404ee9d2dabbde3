"""The runner of one version of a divided model: hands each request to the model of one division.

The division is the one that the request names (``InferRequest.division``), otherwise the present one of the watch. A
request stays with its division, whose version is held until the request ends. There is one exception: a request whose
division needs the core runs on the edge instead, once, if the core cannot answer it, is lost, or lets it wait long
beyond its estimate after the present division has moved. This repeats what has run of it, which is free of side
effects: divided models take no requests of sequences. Two kinds are left out: requests that order a division, and those
that two connections were lost with, since they may be the cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from isochrone.clock import NEVER, now_ns
from isochrone.errors import (
    DeadlineExceeded,
    InvalidArgument,
    IsochroneError,
    NotFound,
    QueueFull,
    Unavailable,
    UnsupportedEncoding,
)
from isochrone.models.divisions import CORE, EDGE, SPLIT, Division
from isochrone.observe.snapshot import DividedSnapshot
from isochrone.protocol.headers.divisions import DIVISION_KINDS, parse_division
from isochrone.worker.divided.division_request import DivisionRequest
from isochrone.worker.divided.overdue import patience
from isochrone.worker.divided.replanning import REASONS
from isochrone.worker.divided.watching import DivisionWatch
from isochrone.worker.ensembles.pins import resolve_pinned
from isochrone.worker.execution.instances.batch import answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from isochrone.protocol.messages import InferRequest, Parameters, Tensors
    from isochrone.worker.divided.settings import DividedSettings
    from isochrone.worker.ensembles.pins import Resolve
    from isochrone.worker.served_version import RequestRunner, ServedVersion
    from isochrone.worker.statistics import ModelStatistics

#: The core, or the way to it, cannot do its part. ``NotFound``: it does not have the stage, or not its version.
#: ``QueueFull``: too many requests wait for it, here or there. ``UnsupportedEncoding``: it cannot decompress.
_OF_THE_CORE = (Unavailable, NotFound, DeadlineExceeded, QueueFull, UnsupportedEncoding)
#: More lost connections than this may be the request's fault.
_MOST_LOSSES = 1


class DividedRunner:
    """Runs the requests of one version."""

    def __init__(
        self,
        name: str,
        settings: DividedSettings,
        resolve: Resolve,
        statistics: ModelStatistics,
        request_ended: Callable[[], None],
    ) -> None:
        self._name = name
        self._divisions = {each.name: each for each in settings.plan.divisions}
        self._resolve = resolve
        self._statistics = statistics
        self._request_ended = request_ended
        #: The run of each request that is not answered yet; not those that have been given up.
        self._running: set[DivisionRequest] = set()
        self.watch = DivisionWatch(name, statistics.model_version, settings, resolve, self._rescue)
        #: Runs by division, and requests that ran on the edge instead.
        self.requests: Counter[str] = Counter()
        self.fallbacks = 0

    def start(self) -> None:
        self.watch.start()

    @property
    def pending(self) -> int:
        return 0

    def submit(self, request: InferRequest) -> None:
        if request.plan.sequence_id:
            raise InvalidArgument(
                f"model '{self._name}' is divided and keeps no state between requests: expected a request without "
                "sequence_id"
            )
        asked, is_wish = parse_division(request.division)
        division, version = self._chosen(request, asked, is_wish)
        request.dispatched = request.compute_start = request.infer_start = now_ns()
        child = self._child(request, division, version)
        child.is_ordered = bool(asked) and not is_wish
        try:
            self._start(child)
        except IsochroneError as error:
            child.fail(error)

    def _child(self, request: InferRequest, division: Division, version: ServedVersion) -> DivisionRequest:
        now = now_ns()
        trace = self._statistics.trace
        context = None if trace is None else trace.begin(request)
        child = DivisionRequest(self, request, division, version, now, context)
        times = self.watch.times.get(division.name)
        child.overdue_at = now + patience(0.0 if times is None else times.late, request.deadline - now)
        return child

    def _start(self, child: DivisionRequest) -> None:
        # It stays loaded until the run ends, even if it is replaced meanwhile.
        child.version.hold()
        self.requests[child.run_in.name] += 1
        self._running.add(child)
        child.version.submit(child)

    # The choice.

    def _chosen(self, request: InferRequest, asked: str, is_wish: bool) -> tuple[Division, ServedVersion]:
        if asked and not is_wish:
            division = self._asked(asked)
            return division, self._version(division, request.stages)
        if is_wish and asked not in DIVISION_KINDS:
            self._asked(asked)  # unknown names are rejected; which kinds there are depends on the worker
        problem: IsochroneError | None = None
        for name in self._by_preference(self.watch.best(asked)):
            try:
                return self._divisions[name], self._version(self._divisions[name], request.stages)
            except IsochroneError as error:
                problem = problem or error
        assert problem is not None  # a plan has at least one division
        raise problem

    def _by_preference(self, wished: str | None) -> Iterator[str]:
        """What is wished, or the present division; and should its model just have been unloaded, those that are
        offered, then all."""
        if wished is not None:
            yield wished
        yield self.watch.present
        yield from sorted(self.watch.times, key=lambda name: self.watch.times[name].late)
        yield from self._divisions

    def _asked(self, name: str) -> Division:
        """The division that a header names, also if it is not offered: an attempt may succeed."""
        found = self._divisions.get(name)
        if found is None and name == SPLIT:
            cuts = [each for each in self._divisions.values() if each.is_cut]
            best = self.watch.best(SPLIT)
            found = self._divisions[best] if best is not None else cuts[0] if cuts else None
        if found is None:
            kinds = [kind for kind in DIVISION_KINDS if kind in self._divisions or (kind == SPLIT and self._has_cuts)]
            names = [*kinds, *(each for each in self._divisions if each not in (EDGE, CORE))]
            raise InvalidArgument(
                f"model '{self._name}': header x-isochrone-division: expected one of {', '.join(names)}, "
                f"given '{name[:100]}'"
            )
        return found

    @property
    def _has_cuts(self) -> bool:
        return any(each.is_cut for each in self._divisions.values())

    def _version(self, division: Division, stages: Mapping[str, str] | None) -> ServedVersion:
        where = f"divided model '{self._name}', division '{division.name}'"
        try:
            return resolve_pinned(self._resolve, division.model, stages, where)
        except Unavailable:
            raise
        except IsochroneError as error:
            raise Unavailable(f"{where} is not offered: {error}").not_begun() from None

    # Answers.

    def division_done(self, child: DivisionRequest, outputs: Tensors, parameters: Parameters) -> None:
        request = child.original
        if not self._over(child):
            return
        now = now_ns()
        self.watch.request_done(child, now)
        request.infer_end = request.compute_end = now
        rows = request.plan.batch_size
        self._statistics.record_batch(rows, 0, now - request.infer_start, 0)
        self._statistics.record_success(request, now, rows)
        self._request_ended()
        if request.cancelled:
            request.dropped()
        else:
            answer(request, outputs, parameters)

    def division_failed(self, child: DivisionRequest, error: IsochroneError) -> None:
        if not self._over(child):
            return
        losses = child.losses + error.losses
        if isinstance(error, _OF_THE_CORE) and losses <= _MOST_LOSSES and self._may_repeat(child):
            has_begun = child.has_begun or not error.unprocessed
            if self._runs_on_the_edge(child, losses, has_begun):
                return
        error = error.within(f"divided model '{self._name}', division '{child.run_in.name}'")
        # What is true of the last run alone may not be true of the request.
        error.losses = losses
        self._end(child.original, error.begun() if child.has_begun else error)

    def _over(self, child: DivisionRequest) -> bool:
        """Counts a run out; False: its answer is not used."""
        self._running.discard(child)
        child.version.request_ended()
        return not child.given_up

    def _end(self, request: InferRequest, error: IsochroneError) -> None:
        self._statistics.record_failure(error.code, now_ns() - request.arrived)
        self._statistics.trace_failure(request, error)
        self._request_ended()
        if request.cancelled:
            request.dropped()
        else:
            request.fail(error)

    # The edge instead of the core.

    @staticmethod
    def _may_repeat(child: DivisionRequest) -> bool:
        request = child.original
        if not child.run_in.uses_link or child.is_ordered or child.given_up or request.cancelled:
            return False
        return request.deadline > now_ns()

    def _edge_version(self, request: InferRequest) -> ServedVersion | None:
        try:
            return self._version(self._divisions[EDGE], request.stages) if EDGE in self._divisions else None
        except IsochroneError:
            return None

    def _runs_on_the_edge(self, child: DivisionRequest, losses: int, has_begun: bool) -> bool:
        """Lets a run on the edge take the place of a run; False: the edge does not take it."""
        edge = self._edge_version(child.original)
        if edge is None:
            return False
        is_running = child in self._running
        child.given_up = True
        self._running.discard(child)
        instead = self._child(child.original, self._divisions[EDGE], edge)
        instead.losses, instead.has_begun = losses, has_begun
        try:
            self._start(instead)
        except IsochroneError:
            self._over(instead)
            # The core may still answer.
            child.given_up = False
            if is_running:
                self._running.add(child)
            return False
        self.fallbacks += 1
        return True

    def _rescue(self) -> None:
        """The core has been lost: requests that wait for it run on the edge, if they may."""
        for child in list(self._running):
            if child in self._running and self._may_repeat(child):
                self._runs_on_the_edge(child, child.losses, has_begun=True)

    def check_stuck(self, now: int) -> None:
        """The runners of the divisions check their own runs. Here: a link may be useless while the core still answers
        probes. Requests in a division that is not the present one any more, which have waited for too long, run on the
        edge, if that is still in time."""
        present, edge = self.watch.present, self.watch.times.get(EDGE)
        if edge is None:
            return
        for child in list(self._running):
            if child.overdue_at > now or child.run_in.name == present or child.original.deadline - now <= edge.late:
                continue
            if child in self._running and self._may_repeat(child):
                child.overdue_at = NEVER  # one attempt
                self._runs_on_the_edge(child, child.losses, has_begun=True)

    # Figures.

    def estimated_wait(self, now: int) -> int:
        return max((runner.estimated_wait(now) for runner in self._present_runner()), default=0)

    def estimated_run(self) -> int:
        """What remains of the expected time beside ``estimated_wait``: times of requests have their waits in them."""
        present = self.watch.present
        if not self._divisions[present].uses_link:
            # Its own runner knows the run alone, also when its queue has just changed.
            known = max((runner.estimated_run() for runner in self._present_runner()), default=0)
            if known:
                return known
        times = self.watch.times.get(present)
        return 0 if times is None else max(0, int(times.expected) - self.estimated_wait(now_ns()))

    def least_run(self) -> int:
        """Not known: a request may name a division that is faster."""
        return 0

    def _present_runner(self) -> Iterator[RequestRunner]:
        try:
            yield self._resolve(self._divisions[self.watch.present].model, "").runner
        except IsochroneError:
            return

    def snapshot(self) -> DividedSnapshot:
        watch = self.watch
        return DividedSnapshot(
            self._name,
            self._statistics.model_version,
            watch.present,
            {name: self.requests[name] for name in self._divisions},
            {name: times.late / 1e9 for name, times in watch.times.items()},
            {reason: watch.moves[reason] for reason in REASONS},
            self.fallbacks,
            watch.core_answers,
            watch.link.round_trip,
            watch.link.jitter,
            watch.link.bytes_per_second,
        )

    def steps_digest(self, stages: Mapping[str, str] | None) -> str:
        """Of all divisions: any of them may have made an answer that is kept."""
        digests = []
        for each in self._divisions.values():
            try:
                digests.append(self._version(each, stages).cache_digest(stages))
            except IsochroneError:
                continue
        return "".join(digests)

    def fail_all(self, error: IsochroneError | None = None) -> None:
        for child in list(self._running):
            if child in self._running:
                child.given_up = True
                self._running.discard(child)
                self._end(child.original, error or Unavailable(f"model '{self._name}' is being unloaded"))

    def release(self) -> None:
        self.watch.stop()

    def close(self) -> None:
        pass
