"""The runner of one version of a divided model: hands each request to the model of one division.

The division is the one that the request names (``InferRequest.division``), otherwise the present one of the watch. A
request stays with its division, whose version is held until the request ends. There is one exception: a request that
names no division and whose division needs the core runs on the edge instead if the core is lost, while time is left.
This repeats what has run of it, which is free of side effects: requests of sequences are left out, since their models
keep state, and those that two connections were lost with, since they may be the cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from isochrone.clock import now_ns
from isochrone.errors import DeadlineExceeded, InvalidArgument, IsochroneError, NotFound, Unavailable
from isochrone.models.divisions import CORE, EDGE, SPLIT, Division
from isochrone.observe.snapshot import DividedSnapshot
from isochrone.protocol.divisions import DIVISION_KINDS
from isochrone.worker.divided.division_request import DivisionRequest
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

#: ``NotFound``: the core does not have the stage, or not its version.
_OF_A_LOST_CORE = (Unavailable, NotFound, DeadlineExceeded)
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
        self._running: set[DivisionRequest] = set()
        self.watch = DivisionWatch(name, statistics.model_version, settings, resolve, self._rescue)
        #: Requests by division, and those that ran on the edge because the core was lost.
        self.requests: Counter[str] = Counter()
        self.fallbacks = 0

    def start(self) -> None:
        self.watch.start()

    @property
    def pending(self) -> int:
        return 0

    def submit(self, request: InferRequest) -> None:
        division, version = self._chosen(request)
        request.dispatched = request.compute_start = request.infer_start = now_ns()
        self._start(request, division, version)

    def _start(self, request: InferRequest, division: Division, version: ServedVersion) -> None:
        # It stays loaded until the run ends, even if it is replaced meanwhile.
        version.hold()
        self.requests[division.name] += 1
        child = DivisionRequest(self, request, division, version, now_ns())
        self._running.add(child)
        try:
            version.submit(child)
        except IsochroneError as error:
            child.fail(error)

    # The choice.

    def _chosen(self, request: InferRequest) -> tuple[Division, ServedVersion]:
        if request.division:
            division = self._asked(request.division)
            return division, self._version(division, request.stages)
        problem: IsochroneError | None = None
        for name in self._by_preference():
            try:
                return self._divisions[name], self._version(self._divisions[name], request.stages)
            except IsochroneError as error:
                problem = problem or error
        assert problem is not None  # a plan has at least one division
        raise problem

    def _by_preference(self) -> Iterator[str]:
        """The present division; and should its model just have been unloaded, those that are offered, then all."""
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
        if self._may_repeat(child, error):
            edge = self._edge_version(child.original)
            if edge is not None:
                self.fallbacks += 1
                self._start(child.original, self._divisions[EDGE], edge)
                return
        self._end(child.original, error.within(f"divided model '{self._name}', division '{child.run_in.name}'"))

    def _over(self, child: DivisionRequest) -> bool:
        """Counts a run out; False: its answer is not used."""
        self._running.discard(child)
        child.version.request_ended()
        return not child.given_up

    def _end(self, request: InferRequest, error: IsochroneError) -> None:
        self._statistics.record_failure(error.code, now_ns() - request.arrived)
        self._request_ended()
        if request.cancelled:
            request.dropped()
        else:
            request.fail(error)

    # The edge instead of a lost core.

    @staticmethod
    def _may_repeat(child: DivisionRequest, error: IsochroneError | None) -> bool:
        request = child.original
        if not child.run_in.uses_link or request.division or request.cancelled or request.plan.sequence_id:
            return False
        if error is not None and (error.losses > _MOST_LOSSES or not isinstance(error, _OF_A_LOST_CORE)):
            return False
        return request.deadline > now_ns()

    def _edge_version(self, request: InferRequest) -> ServedVersion | None:
        try:
            return self._version(self._divisions[EDGE], request.stages) if EDGE in self._divisions else None
        except IsochroneError:
            return None

    def _rescue(self) -> None:
        """The core has been lost: requests that wait for it run on the edge, if they may."""
        for child in list(self._running):
            edge = self._edge_version(child.original) if self._may_repeat(child, None) else None
            if edge is not None:
                child.given_up = True
                self.fallbacks += 1
                self._start(child.original, self._divisions[EDGE], edge)

    # Figures.

    def estimated_wait(self, now: int) -> int:
        return max((runner.estimated_wait(now) for runner in self._present_runner()), default=0)

    def estimated_run(self) -> int:
        times = self.watch.times.get(self.watch.present)
        return 0 if times is None else int(times.expected)

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

    def check_stuck(self, now: int) -> None:
        """Nothing to do: the runners of the divisions check their own runs."""

    def fail_all(self, error: IsochroneError | None = None) -> None:
        for child in list(self._running):
            child.given_up = True
            self._end(child.original, error or Unavailable(f"model '{self._name}' is being unloaded"))

    def release(self) -> None:
        self.watch.stop()

    def close(self) -> None:
        pass
