"""A worker with several models, each with its own queue, instances and times: an exact worker per model in one process.

Models do not slow each other down: their times are as measured, whatever runs beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isochrone.gateway.replicas import LoadReport
from isochrone.log_histogram import LogHistogram
from isochrone.simulate.engine import Engine
from isochrone.simulate.processes.calls import ANSWERED, Call
from isochrone.simulate.processes.exact_worker import ExactWorker
from isochrone.simulate.processes.worker import Worker

#: As those of ``Tally``: percentiles are within 0.2 %.
_BITS = 9


class ModelPart(ExactWorker):
    """One model of a worker. ``owner`` counts its answers."""

    owner: ModelsWorker

    def warmed_sizes(self) -> Iterable[int]:
        """Powers of two and the largest, the rest is interpolated: a fleet has hundreds of parts."""
        largest = self._rules.max_rows
        return sorted({*(1 << power for power in range(largest.bit_length())), largest})

    def answer(self, now: int, call: Call, outcome: int, report: LoadReport | None) -> None:
        if outcome == ANSWERED:
            self.owner.answers += 1
            self.owner.latency.add(now - call.entered)
        super().answer(now, call, outcome, report)

    def report(self, now: int) -> LoadReport:
        """Requests in flight are those of all models, as in the worker's reports."""
        queue = self.queue
        return LoadReport(self.owner.in_flight, queue.pending, queue.estimated_wait(now), self.curve.estimate(1))


class ModelsWorker(Worker):
    """``parts``: by model. All parts have the number, the engine and the delays of the worker."""

    def __init__(self, number: int, engine: Engine, parts: Mapping[str, ModelPart], tier: str, device: str) -> None:
        first = next(iter(parts.values()))
        super().__init__(number, engine, first.delay)
        self.parts = parts
        self.models = tuple(parts)
        self.tier = tier
        self.device = device
        #: From arrival to answer, inside the worker.
        self.latency = LogHistogram(_BITS)
        for part in parts.values():
            part.owner = self

    # ``in_flight`` and ``used`` are those of the parts.

    @property
    def in_flight(self) -> int:
        return sum(part.in_flight for part in self.parts.values())

    @in_flight.setter
    def in_flight(self, value: int) -> None:
        """The base class sets it to 0, which it is."""

    @property
    def used(self) -> float:
        return sum(part.used for part in self.parts.values())

    @used.setter
    def used(self, value: float) -> None:
        """The base class sets it to 0, which it is."""

    def accept(self, now: int, call: Call) -> None:
        call.entered = now
        self.parts[call.model].accept(now, call)

    def cancel(self, now: int, call: Call) -> None:
        self.parts[call.model].cancel(now, call)

    def check(self, now: int) -> None:
        for part in self.parts.values():
            part.check(now)

    def report(self, now: int) -> LoadReport:
        """Of the whole process, as an answer to a probe: the longest wait of its models."""
        reports = [part.report(now) for part in self.parts.values()]
        if len(reports) == 1:
            return reports[0]
        slowest = max(reports, key=lambda each: each.wait_ns + each.run_ns)
        return slowest._replace(queue=sum(each.queue for each in reports))

    def drop_all(self, now: int) -> list[Call]:
        return [call for part in self.parts.values() for call in part.drop_all(now)]

    def stall(self, now: int) -> None:
        super().stall(now)
        for part in self.parts.values():
            part.stall(now)

    def slow(self, now: int, factor: float) -> None:
        super().slow(now, factor)
        for part in self.parts.values():
            part.slow(now, factor)

    def recover(self, now: int) -> None:
        super().recover(now)
        for part in self.parts.values():
            part.recover(now)
