"""A divided model whose divisions are in the hands of a test: nothing is loaded, and nothing answers by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queued_requests import RecordedRequest, plan_of, rows_of

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import ConnectionLost, IsochroneError, NotFound
from isochrone.models.divisions import Division, Divisions, Link
from isochrone.protocol.messages import InferRequest
from isochrone.worker.divided.runner import DividedRunner
from isochrone.worker.divided.settings import DividedSettings
from isochrone.worker.remote.link import Crossing
from isochrone.worker.statistics import ModelStatistics

DIVISIONS = (
    Division("core", "m.core", 0, 2_000_000, 100, 10, 0),
    Division("cut-3", "m.cut-3", 1_000_000, 2_000_000, 50, 10, 7),
    Division("cut-9", "m.cut-9", 4_000_000, 1_000_000, 10, 10, 8),
    Division("edge", "m.edge", 30_000_000, 0, 0, 0, 9),
)

LOST = ConnectionLost("the connection broke")
LOST.losses = 1


class Queue:
    """The runner of a served model, of which only the estimates are read."""

    def __init__(self, wait_ms: int = 0, run_ms: int = 0) -> None:
        self.wait, self.run = wait_ms * MILLISECOND, run_ms * MILLISECOND

    def estimated_wait(self, now: int) -> int:
        return self.wait

    def estimated_run(self) -> int:
        return self.run


class Version:
    """A served model whose requests wait until the test answers them."""

    def __init__(self, name: str) -> None:
        self.model_name = name
        self.model_version = "1"
        self.runner: Any = Queue()
        self.held = 0
        self.waiting: list[InferRequest] = []
        self.rejection: IsochroneError | None = None

    def hold(self) -> None:
        self.held += 1

    def request_ended(self) -> None:
        self.held -= 1

    def submit(self, request: InferRequest) -> None:
        if self.rejection is not None:
            raise self.rejection
        self.waiting.append(request)


class Asking(RecordedRequest):
    """With a header, perhaps."""

    asked = ""

    @property
    def division(self) -> str:
        return self.asked


class Bench:
    def __init__(self, divisions: Sequence[Division] = DIVISIONS) -> None:
        self.versions = {each.name: Version(each.model) for each in divisions}
        self.in_flight = 0
        # Without a time between looks: each failure counts, however close they are.
        settings = DividedSettings(Divisions("core", Link(0.001, 1e6), tuple(divisions)), look_ns=0)
        self.runner = DividedRunner("m", settings, self.resolve, ModelStatistics("m", "1"), self.request_ended)  # type: ignore[arg-type]
        self.runner.watch._look()

    def resolve(self, name: str, version: str) -> Version:
        for each in self.versions.values():
            if each.model_name == name:
                return each
        raise NotFound(f"no model {name}")

    def request_ended(self) -> None:
        self.in_flight -= 1

    def send(self, division: str = "", deadline: int = 0, sequence: int = 0) -> Asking:
        plan = plan_of()
        plan.sequence_id = sequence
        request = Asking(plan, {"x": rows_of(1)}, now_ns(), deadline or now_ns() + 60 * SECOND)
        request.asked = division
        self.in_flight += 1
        try:
            self.runner.submit(request)
        except IsochroneError:
            self.request_ended()
            raise
        return request

    def waiting(self, division: str) -> InferRequest:
        return self.versions[division].waiting.pop(0)

    def is_clean(self) -> bool:
        held = any(version.held or version.waiting for version in self.versions.values())
        return not self.in_flight and not held and not self.runner._running


def lose_the_core(bench: Bench) -> None:
    for _ in range(3):
        bench.runner.watch.unreachable("m.core")


def find_the_core(bench: Bench) -> None:
    bench.runner.watch.crossed("m.core", Crossing(now_ns(), 400, 1_000, 0))
