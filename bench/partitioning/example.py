"""8 ms on the edge, 4 ms on the link and 6 ms at the core, of 20 ms: a model and a link sized to these times.

The number of layers before and after the features, and the delay of the link, are found by measuring: first each stage
by itself, then corrected by requests through the division, whose stages wait for each other and find colder caches.
Then the planner divides the model of these sizes, and further requests measure the division.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.links.network import EmulatedNetwork
from bench.links.settings import LinkSettings
from bench.partitioning.models import CLASSES, read, rows_of
from bench.partitioning.served import ServedOption, check_outputs, served_options
from bench.partitioning.tiers import Tier
from bench.profiling.models import Graph
from isochrone.optimize.partitioning.choices import choose
from isochrone.optimize.partitioning.encodings import Encoding
from isochrone.optimize.partitioning.link_measuring import measured_link
from isochrone.optimize.partitioning.planning import Plan, Planner
from isochrone.optimize.partitioning.tiers import TierWorker
from isochrone.optimize.partitioning.writing import core_model

EDGE_MS, LINK_MS, CORE_MS, DEADLINE_MS = 8.0, 4.0, 6.0, 20.0
_BITS_PER_SECOND = 100e6
_POINTS, _GIVEN, _WIDTH, _FEATURES = 64, 1024, 256, 64
_CROSSING = _POINTS * _FEATURES * 4
_STEPS = 4
_ATTEMPTS = 3
_RUNS = 24
#: Corrections by requests, of so many each, until every part is as close as this.
_CORRECTIONS, _TRIED, _CLOSE = 4, 100, 0.05
_CUTS = 5


def _layer(graph: Graph, source: str, inside: int, outside: int, name: str = "") -> str:
    return graph.add("Relu", [graph.add("MatMul", [source, graph.weight(inside, outside)])], name)


def _first(graph: Graph, layers: int, name: str) -> str:
    current = _layer(graph, "x", _GIVEN, _WIDTH)
    for _ in range(layers):
        current = _layer(graph, current, _WIDTH, _WIDTH)
    return _layer(graph, current, _WIDTH, _FEATURES, name)


def _second(graph: Graph, layers: int, source: str) -> None:
    current = _layer(graph, source, _FEATURES, _WIDTH)
    for _ in range(layers):
        current = _layer(graph, current, _WIDTH, _WIDTH)
    highest = graph.add("ReduceMax", [current], axes=[1], keepdims=0)
    graph.add("MatMul", [highest, graph.weight(_WIDTH, CLASSES)], "y")


def example_model(before: int, after: int) -> bytes:
    """So many layers before and after the features that are to cross, which are small; the input is large."""
    graph = Graph(14)
    _second(graph, after, _first(graph, before, "features"))
    return graph.model((_POINTS, _GIVEN), (CLASSES,))


def first_stage(layers: int) -> bytes:
    graph = Graph(14)
    _first(graph, layers, "y")
    return graph.model((_POINTS, _GIVEN), (_POINTS, _FEATURES))


def second_stage(layers: int) -> bytes:
    graph = Graph(14)
    _second(graph, layers, "x")
    return graph.model((_POINTS, _FEATURES), (CLASSES,))


@dataclass(frozen=True, slots=True)
class Example:
    """Milliseconds of requests: medians, p99, and the mean of each part."""

    chosen: str
    asked: str
    predicted: float
    edge: float
    link: float
    core: float
    rest: float
    median: float
    p99: float
    requests: int

    def lines(self) -> list[str]:
        within = "within" if self.p99 <= DEADLINE_MS else "NOT within"
        return [
            f"planner: {self.chosen}, {self.predicted:.1f} ms; asked for {self.asked}",
            "| | edge | link | core | caller and edge's front | sum |",
            "|---|---|---|---|---|---|",
            f"| budget, ms | {EDGE_MS:g} | {LINK_MS:g} | {CORE_MS:g} | – | {EDGE_MS + LINK_MS + CORE_MS:g} |",
            f"| measured, mean | {self.edge:.2f} | {self.link:.2f} | {self.core:.2f} | {self.rest:.2f} | "
            f"{self.edge + self.link + self.core + self.rest:.2f} |",
            f"{self.requests} requests: median {self.median:.2f} ms, p99 {self.p99:.2f} ms: p99 {within} "
            f"{DEADLINE_MS:g} ms, median {'within' if self.median <= DEADLINE_MS else 'NOT within'}",
        ]


def _layers(worker: TierWorker, stage: Callable[[int], bytes], wanted: float) -> int:
    """So many that the stage takes ``wanted`` milliseconds on the worker."""
    few, many = 1, 32
    for _ in range(_ATTEMPTS):
        low, high = _milliseconds(worker, stage(few)), _milliseconds(worker, stage(many))
        many = next_count(many - few, high, wanted, low) + few
    return many


def _milliseconds(worker: TierWorker, model: bytes) -> float:
    inputs = rows_of(read(model), 1)
    with worker.loaded({"backend": "onnxruntime", "max_batch_size": 0}, model) as name:
        return statistics.median(worker.compute_seconds(name, inputs) for _ in range(_RUNS)) * 1e3


def next_count(count: int, taken: float, wanted: float, fixed: float) -> int:
    """Layers for ``wanted``, if ``count`` of them take ``taken``, and ``fixed`` without any. Pure."""
    each = max(1e-6, (taken - fixed) / max(1, count))
    return max(1, round((wanted - fixed) / each))


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is sized to the times: layers on both sides of the features, and one way's delay of the link in seconds."""

    before: int
    after: int
    delay: float


@dataclass(frozen=True, slots=True)
class Parts:
    """Mean milliseconds of a request's parts, and the seconds of every request, sorted."""

    edge: float
    link: float
    core: float
    samples: tuple[float, ...]

    @property
    def rest(self) -> float:
        return statistics.mean(self.samples) * 1e3 - self.edge - self.link - self.core

    @property
    def are_close(self) -> bool:
        pairs = ((self.edge, EDGE_MS), (self.link, LINK_MS), (self.core, CORE_MS))
        return all(abs(measured - wanted) <= _CLOSE * wanted for measured, wanted in pairs)


def corrected(sizes: Sizes, parts: Parts) -> Sizes:
    """The sizes for the wanted times, if ``sizes`` take ``parts``. Pure."""
    return Sizes(
        max(1, round(sizes.before * EDGE_MS / parts.edge)),
        max(1, round(sizes.after * CORE_MS / parts.core)),
        max(0.0, sizes.delay + (LINK_MS - parts.link) / 2e3),
    )


class ExampleRun:
    def __init__(
        self, network: EmulatedNetwork, edge: Tier, core: Tier, directory: Path, say: Callable[[str], None]
    ) -> None:
        self._network, self._edge, self._core = network, edge, core
        self._directory, self._say = directory, say

    def run(self, requests: int) -> Example:
        sizes = self._first_sizes()
        for attempt in range(_CORRECTIONS):
            with self._served(sizes, f"sized-{attempt}") as (split, _):
                parts = self._parts(split, _TRIED)
            self._say(
                f"example: {sizes.before} and {sizes.after} layers, {2e3 * sizes.delay:.2f} ms of delay: edge "
                f"{parts.edge:.2f}, link {parts.link:.2f}, core {parts.core:.2f} ms"
            )
            if parts.are_close:
                break
            sizes = corrected(sizes, parts)
        self._say(
            f"example: {sizes.before} layers before and {sizes.after} after the features of {_CROSSING:,} bytes; the "
            f"link: {2e3 * sizes.delay:.2f} ms of delay in a round trip, {_BITS_PER_SECOND / 1e6:g} Mbit/s"
        )
        with self._served(sizes, "example") as (split, plan):
            choice = choose([each.option for each in plan.options], plan.link, DEADLINE_MS / 1e3)
            parts = self._parts(split, requests)
        return Example(
            choice.option.name,
            split.name,
            choice.option.seconds(plan.link) * 1e3,
            parts.edge,
            parts.link,
            parts.core,
            parts.rest,
            statistics.median(parts.samples) * 1e3,
            parts.samples[min(requests - 1, int(requests * 0.99))] * 1e3,
            requests,
        )

    def _first_sizes(self) -> Sizes:
        with self._workers() as (edge, core):
            before, after = _layers(edge, first_stage, EDGE_MS), _layers(core, second_stage, CORE_MS)
            return Sizes(before, after, self._delay(edge, core, _CROSSING))

    @contextmanager
    def _workers(self) -> Iterator[tuple[TierWorker, TierWorker]]:
        with (
            TierWorker("edge", self._edge.near) as edge,
            TierWorker("core", self._core.near, self._core.far) as core,
        ):
            yield edge, core

    @contextmanager
    def _served(self, sizes: Sizes, name: str) -> Iterator[tuple[ServedOption, Plan]]:
        """A model of these sizes, divided at its features, and the planner's plan of it."""
        model = read(example_model(sizes.before, sizes.after))
        inputs = rows_of(model, 1)
        self._network.set(LinkSettings(sizes.delay, _BITS_PER_SECOND))
        with self._workers() as (edge, core):
            plan = Planner(model, inputs, list(inputs), lambda line: None).plan(edge, core, [Encoding.PLAIN], _CUTS)
        # The features before and after their activation are equally large: the planner measures one of them.
        between = [each for each in plan.options if each.stages and each.option.sent_bytes == _CROSSING]
        if not between:
            raise RuntimeError(
                f"{sizes.before} and {sizes.after} layers leave no work on one side, so the cut between them was not "
                "measured: other processes disturbed the calibration; run it again on a quiet machine"
            )
        divided = replace(plan, options=tuple(between[:1]))
        with served_options(self._directory, name, model, divided, self._edge, self._core, inputs) as options:
            check_outputs(options, model, inputs)
            yield options[0], plan

    def _parts(self, split: ServedOption, requests: int) -> Parts:
        first, remote_stage = f"{split.model}_1", f"{split.model}_2"
        for _ in range(10):
            split.seconds()
        places = ((self._edge, first), (self._edge, remote_stage), (self._core, core_model(remote_stage)))
        began = [tier.compute_totals(name) for tier, name in places]
        samples = sorted(split.seconds() for _ in range(requests))
        ended = [tier.compute_totals(name) for tier, name in places]
        on_edge, remote, at_core = (
            (after[1] - before[1]) / max(1, after[0] - before[0]) / 1e6
            for before, after in zip(began, ended, strict=True)
        )
        return Parts(on_edge, remote - at_core, at_core, tuple(samples))

    def _delay(self, edge: TierWorker, core: TierWorker, crossing: int) -> float:
        """Of one way, in seconds, for a link of the wanted time."""
        delay = 0.0
        for _ in range(_STEPS):
            self._network.set(LinkSettings(delay, _BITS_PER_SECOND))
            taken = measured_link(edge, core, lambda line: None, crossing).seconds(crossing, CLASSES * 4)
            delay = max(0.0, delay + (LINK_MS / 1e3 - taken) / 2)
        self._network.set(LinkSettings(delay, _BITS_PER_SECOND))
        return delay
