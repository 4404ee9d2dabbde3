"""Finds the options of a model on two tiers: loads stages into a worker of each, times them, and measures the link.

The link is measured the way that it will be used: a remote model on the edge worker sends tensors of several sizes to
a model on the core worker that does nothing with them, several times each, until TCP's window has grown to the size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from isochrone.errors import InvalidArgument
from isochrone.models.divisions import CORE, EDGE
from isochrone.optimize.measuring.timing import LEAST_RUNS, timing_of
from isochrone.optimize.partitioning.choices import Option, contenders
from isochrone.optimize.partitioning.cuts import MOST_TENSORS, Cut, all_cuts
from isochrone.optimize.partitioning.encodings import Encoding, Scales, is_encodable, least_opset, scales_of
from isochrone.optimize.partitioning.facts import Arrays, InnerTensors, TensorFacts, facts_of, known_facts
from isochrone.optimize.partitioning.graph import Graph, graph_of
from isochrone.optimize.partitioning.links import Exchange, Link, link_of
from isochrone.optimize.partitioning.stages import Stages, divided, opset_of
from isochrone.optimize.partitioning.tiers import Rejected, TierWorker
from isochrone.optimize.partitioning.work import node_work, worth_measuring

Report = Callable[[str], None]

_WARM_RUNS = 3
_MOST_RUNS = 40
_PRECISION = 0.03
#: Sizes of probes: round trips, then from the first on, each so many times as large.
_SMALL, _FIRST, _LARGE, _STEP = 64, 1 << 12, 1 << 20, 4
_ROUND_TRIPS, _PROBES = 24, 7
#: A larger probe tells the bandwidth better, and takes too long on a slow link.
_ENOUGH_SECONDS = 0.2
#: Probes before those that count: at most, and the share of the time of the one before that ends them.
_MOST_WARM_PROBES, _STEADY = 8, 0.9
#: Options whose time is at most so many times that of the fastest are measured again, and so many at most.
_CONTENDING, _MOST_CONTENDERS = 1.25, 4
#: What a worker takes by default. Load requests carry a model in base64, and a head.
_USUAL_BODY, _HEAD = 256 << 20, 4096
#: A stage may take shapes or indices, and fail with zeros: real inputs warm it up before it is timed.
_ONNX: Mapping[str, Any] = {
    "backend": "onnxruntime",
    "max_batch_size": 0,
    "parameters": {"auto_warmup": {"string_value": "false"}},
}


@dataclass(frozen=True, slots=True)
class Planned:
    """An option with its stages; None: the whole model is on one side."""

    option: Option
    stages: Stages | None
    #: "edge", "core", or a cut by the number of nodes in its first stage, such as "cut-12-fp16".
    division: str


@dataclass(frozen=True, slots=True)
class Plan:
    link: Link
    options: tuple[Planned, ...]
    #: Of all tensors that cross, and of the model's inputs and outputs.
    facts: Mapping[str, TensorFacts]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Planner:
    """Measures one model."""

    def __init__(self, model: Any, samples: Arrays, free: Collection[str], report: Report) -> None:
        """``samples``: rows of real or made inputs; the first one is timed, all of them calibrate encodings.

        ``free``: inputs that take any number of rows. The others always get all that ``samples`` has.
        """
        self._model = model
        self._samples = samples
        self._free = frozenset(free)
        self._row = self._part(slice(1))
        self._fixed_rows = any(name not in self._free for name in samples)
        self._report = report
        self._graph: Graph = graph_of(model)

    def plan(
        self,
        edge: TierWorker,
        core: TierWorker,
        encodings: Sequence[Encoding],
        most: int,
    ) -> Plan:
        """``most``: cuts to measure. Options that a worker rejects are left out, each with a reported line."""
        possible = [each for each in encodings if opset_of(self._model) >= least_opset(each)]
        for each in encodings:
            if each not in possible:
                self._report(f"{each} is left out: it needs opset {least_opset(each)}, and the model has an older one")
        request = self._model.ByteSize() * 4 // 3
        if request > _USUAL_BODY:
            self._report(f"to load the whole model, both workers need --max-body-bytes {request + _HEAD} or more")
        cuts, facts = self._cuts()
        chosen = worth_measuring(
            cuts, node_work(self._model, self._row), {name: each.row_bytes for name, each in facts.items()}, most
        )
        count = "1 cut is" if len(cuts) == 1 else f"{len(cuts)} cuts are"
        self._report(f"{count} possible; measuring {len(chosen)}")
        most_bytes = max(sum(facts[name].row_bytes for name in cut.crossing) for cut in chosen)
        answer = sum(facts[name].row_bytes for name in self._graph.outputs)
        given = sum(facts[name].row_bytes for name in self._graph.inputs)
        link = self.measured_link(edge, core, max(most_bytes, given))
        whole = self._model.SerializeToString()
        measures: list[tuple[str, Callable[[], Planned]]] = [
            (EDGE, lambda: Planned(Option(EDGE, self._seconds(edge, whole, self._row), 0.0, 0, 0), None, EDGE)),
            (
                CORE,
                lambda: Planned(Option(CORE, 0.0, self._seconds(core, whole, self._row), given, answer), None, CORE),
            ),
        ]
        for cut, called in zip(chosen, _division_names(chosen), strict=True):
            for encoding in possible:
                if encoding is not Encoding.PLAIN and not self._encodable(cut, encoding, facts):
                    continue
                measure = partial(self._measured, cut, called, encoding, facts, edge, core, answer)
                measures.append((_name(cut, encoding), measure))
        accepted = [(self._accepted(name, measure), measure) for name, measure in measures]
        found = [(planned, measure) for planned, measure in accepted if planned is not None]
        if not found:
            raise InvalidArgument("the workers reject the model and every stage of it, for the reasons above")
        # A machine that was busy for a while made some of them look slow: those that matter get a second look.
        contending = contenders([planned.option for planned, _ in found], link, _CONTENDING, _MOST_CONTENDERS)
        options = tuple(
            self._second_look(planned, measure) if planned.option in contending else planned
            for planned, measure in found
        )
        return Plan(link, options, facts, self._graph.inputs, self._graph.outputs)

    def _second_look(self, planned: Planned, measure: Callable[[], Planned]) -> Planned:
        """Whatever else runs on a machine only adds to a time: the lower ones count."""
        try:
            return replace(planned, option=planned.option.lower(measure().option))
        except Rejected:
            return planned  # as it was measured before

    def _accepted(self, name: str, measure: Callable[[], Planned]) -> Planned | None:
        """None: a worker rejects a load or a request, which says nothing of the other options."""
        try:
            return measure()
        except Rejected as error:
            self._report(f"{name} is left out: {error}")
            return None

    def _cuts(self) -> tuple[list[Cut], dict[str, TensorFacts]]:
        """The cuts whose tensors can cross."""
        ends = [*self._graph.inputs, *self._graph.outputs]
        cuts = all_cuts(self._graph)
        facts = facts_of(self._model, ends, self._row, self._fixed_rows)
        # A server batches rows, so that every tensor of a model must have them: or none of the model has.
        batched = all(each.rows_first for each in facts.values())
        names = sorted({name for cut in cuts for name in cut.crossing} - set(facts))
        known, reasons = known_facts(self._model, names, self._row, self._fixed_rows) if names else ({}, [])
        for name, each in known.items():
            if batched and not each.rows_first:
                reasons.append(f"tensor '{name}' cannot cross between stages: its first dimension is not the rows")
            elif each.dtype.kind == "O":
                reasons.append(f"tensor '{name}' cannot cross between stages: it has strings")
            else:
                facts[name] = each
        usable = [cut for cut in cuts if all(name in facts for name in cut.crossing)]
        if not usable:
            why = reasons[0] if reasons else f"no cut with at most {MOST_TENSORS} crossing tensors exists"
            raise InvalidArgument(f"the model cannot be cut: {why}")
        return usable, facts

    def _measured(
        self,
        cut: Cut,
        called: str,
        encoding: Encoding,
        facts: Mapping[str, TensorFacts],
        edge: TierWorker,
        core: TierWorker,
        answer: int,
    ) -> Planned:
        scales = self._scales(cut, facts) if encoding is Encoding.INT8 else {}
        stages = divided(self._model, self._graph, cut, facts, encoding, scales)
        between = InnerTensors(stages.first, stages.crossing).run(_for(stages.first, self._row))
        option = Option(
            _name(cut, encoding),
            self._seconds(edge, stages.first.SerializeToString(), _for(stages.first, self._row)),
            self._seconds(core, stages.second.SerializeToString(), between),
            stages.row_bytes,
            answer,
            0.0 if encoding is Encoding.PLAIN else self._error(stages),
        )
        self._report(
            f"{option.name}: {option.edge_seconds * 1e3:.2f} ms on the edge, {option.core_seconds * 1e3:.2f} ms in the "
            f"core, {option.sent_bytes:,} bytes between them"
        )
        return Planned(option, stages, called if encoding is Encoding.PLAIN else f"{called}-{encoding}")

    def _scales(self, cut: Cut, facts: Mapping[str, TensorFacts]) -> Scales:
        names = self._encodable(cut, Encoding.INT8, facts)
        values = InnerTensors(self._model, names).run(self._halves()[0])
        return {name: scales_of(values[name]) for name in names}

    def _encodable(self, cut: Cut, encoding: Encoding, facts: Mapping[str, TensorFacts]) -> list[str]:
        """The tensors that an encoding changes; inputs of the model cross as they are."""
        inner = [name for name in cut.crossing if name not in self._graph.inputs]
        return [name for name in inner if is_encodable(facts[name].dtype, facts[name].dims, encoding)]

    def _error(self, stages: Stages) -> float:
        """Of the outputs, on rows that calibrated nothing if there are more than one."""
        rows = self._halves()[1]
        wanted = InnerTensors(self._model, self._graph.outputs).run(rows)
        between = InnerTensors(stages.first, stages.crossing).run(_for(stages.first, rows))
        found = InnerTensors(stages.second, self._graph.outputs).run(between)
        errors = []
        for name in self._graph.outputs:
            if wanted[name].dtype.kind == "O":
                errors.append(float(np.mean(found[name] != wanted[name])))
                continue
            exact = wanted[name].astype(np.float64)
            size = float(np.linalg.norm(exact)) or 1.0
            errors.append(float(np.linalg.norm(found[name].astype(np.float64) - exact)) / size)
        return max(errors)

    def _halves(self) -> tuple[Arrays, Arrays]:
        rows = min((len(self._samples[name]) for name in self._free), default=0)
        if self._fixed_rows or rows < 2:
            return self._row, self._row
        return self._part(slice(rows // 2)), self._part(slice(rows // 2, None))

    def _part(self, rows: slice) -> Arrays:
        return {name: array[rows] if name in self._free else array for name, array in self._samples.items()}

    def _seconds(self, worker: TierWorker, model: bytes, inputs: Arrays) -> float:
        with worker.loaded(_ONNX, model) as name:
            return _typical(lambda: worker.compute_seconds(name, inputs))

    def measured_link(self, edge: TierWorker, core: TierWorker, largest: int = _LARGE) -> Link:
        """``largest``: bytes that an option sends at most; more need not be tried."""
        tensors = {
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
        }
        with core.loaded(_ONNX, probe_model().SerializeToString()) as there:
            parameters = {"endpoints": core.reached, "remote_model": there, "remote_version": "1"}
            texts = {key: {"string_value": value} for key, value in parameters.items()}
            with edge.loaded({"backend": "remote", **tensors, "parameters": texts}) as here:

                def exchange(size: int) -> Exchange:
                    return Exchange(size, edge.compute_seconds(here, {"x": np.zeros(size // 4, np.float32)}))

                for _ in range(_WARM_RUNS):
                    exchange(_SMALL)
                exchanges = [exchange(_SMALL) for _ in range(_ROUND_TRIPS)]
                for size in _sizes(largest):
                    _grow_window(partial(exchange, size))
                    probes = [exchange(size) for _ in range(_PROBES)]
                    exchanges += probes
                    if min(each.seconds for each in probes) >= _ENOUGH_SECONDS:
                        break
        link = link_of(exchanges)
        self._report(
            f"the link: {link.round_trip * 1e3:.2f} ms round trip, {link.bytes_per_second * 8 / 1e6:,.1f} Mbit/s, "
            f"{link.jitter * 1e3:.2f} ms jitter"
        )
        return link


def _sizes(largest: int) -> list[int]:
    """Of probes with a payload: at least two, up to the first that is not below ``largest``."""
    sizes = [_FIRST, _FIRST * _STEP]
    while sizes[-1] < min(largest, _LARGE):
        sizes.append(sizes[-1] * _STEP)
    return sizes


def _grow_window(exchange: Callable[[], Exchange]) -> None:
    """Until an exchange is about as slow as the one before."""
    before = exchange().seconds
    for _ in range(_MOST_WARM_PROBES - 1):
        now = exchange().seconds
        if now > _STEADY * before:
            return
        before = now


def _name(cut: Cut, encoding: Encoding) -> str:
    return f"{'+'.join(cut.crossing)} {encoding}"


def _division_names(cuts: Sequence[Cut]) -> list[str]:
    """By the number of first nodes; cuts with equal numbers are counted."""
    names: list[str] = []
    for cut in cuts:
        name = plain = f"cut-{cut.first.bit_count()}"
        number = 1
        while name in names:
            number += 1
            name = f"{plain}-{number}"
        names.append(name)
    return names


def _typical(sample: Callable[[], float]) -> float:
    """The lower quartile: whatever else runs on a worker's machine only adds to a time."""
    for _ in range(_WARM_RUNS):
        sample()
    samples = [sample() for _ in range(LEAST_RUNS)]
    while len(samples) < _MOST_RUNS and timing_of(samples).spread > _PRECISION:
        samples.append(sample())
    return sorted(samples)[len(samples) // 4]


def _for(model: Any, rows: Arrays) -> Arrays:
    """The inputs that a stage has."""
    return {value.name: rows[value.name] for value in model.graph.input}


def probe_model() -> Any:
    """A model that reads a tensor of any size and answers with one number."""
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("ReduceMax", ["x"], ["y"], keepdims=1)],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
