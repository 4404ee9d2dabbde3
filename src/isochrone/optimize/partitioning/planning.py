"""Finds the options of a model on two tiers: loads stages into a worker of each, times them, and measures the link."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from isochrone.errors import InvalidArgument
from isochrone.models.divisions import CORE, EDGE, Link
from isochrone.optimize.measuring.timing import LEAST_RUNS, timing_of
from isochrone.optimize.partitioning.choices import Option, contenders
from isochrone.optimize.partitioning.compressing import compressing_seconds, core_coding, in_zstd, packed_bytes
from isochrone.optimize.partitioning.cuts import MOST_TENSORS, Cut, all_cuts
from isochrone.optimize.partitioning.encodings import Encoding, Scales, is_encodable, least_opset, scales_of
from isochrone.optimize.partitioning.facts import Arrays, InnerTensors, TensorFacts, facts_of, known_facts
from isochrone.optimize.partitioning.graph import Graph, graph_of
from isochrone.optimize.partitioning.link_measuring import ONNX, measured_link
from isochrone.optimize.partitioning.stages import Stages, divided, opset_of
from isochrone.optimize.partitioning.tiers import Rejected, TierWorker
from isochrone.optimize.partitioning.work import node_work, worth_measuring

ZSTD = "zstd"
Report = Callable[[str], None]
Found = TypeVar("Found")

_WARM_RUNS = 3
_MOST_RUNS = 40
_PRECISION = 0.03
#: Rows whose size in zstd is measured.
_MOST_ROWS = 8
#: Options whose time is at most so many times that of the fastest are measured again, and so many at most.
_CONTENDING, _MOST_CONTENDERS = 1.25, 4
#: What a worker takes by default. Load requests carry a model in base64, and a head.
_USUAL_BODY, _HEAD = 256 << 20, 4096


@dataclass(frozen=True, slots=True)
class Planned:
    """An option with its stages; None: the whole model is on one side."""

    option: Option
    stages: Stages | None
    #: "edge", "core", or a cut by the number of nodes in its first stage, such as "cut-12-fp16".
    division: str
    #: Of what crosses: "zstd", or none.
    compression: str = ""


Measure = Callable[[], list[Planned]]


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
        self._with_zstd = False
        self._graph: Graph = graph_of(model)

    def plan(
        self,
        edge: TierWorker,
        core: TierWorker,
        encodings: Sequence[Encoding],
        most: int,
        with_zstd: bool = False,
    ) -> Plan:
        """``most``: cuts to measure. Options that a worker rejects are left out, each with a reported line.

        ``with_zstd``: each option also with what crosses in zstd, where that makes it smaller.
        """
        self._with_zstd = with_zstd
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
        link = measured_link(edge, core, self._report, max(most_bytes, given))
        whole = self._model.SerializeToString()
        measures: list[tuple[str, Measure]] = [
            (EDGE, lambda: [Planned(Option(EDGE, self._seconds(edge, whole, self._row), 0.0, 0, 0), None, EDGE)]),
            (CORE, lambda: self._in_core(whole, facts, edge, core, answer)),
        ]
        for cut, called in zip(chosen, _division_names(chosen), strict=True):
            for encoding in possible:
                if encoding is not Encoding.PLAIN and not self._encodable(cut, encoding, facts):
                    continue
                measure = partial(self._measured, cut, called, encoding, facts, edge, core, answer)
                measures.append((_name(cut, encoding), measure))
        found = [(planned, measure) for name, measure in measures for planned in self._accepted(name, measure)]
        if not found:
            raise InvalidArgument("the workers reject the model and every stage of it, for the reasons above")
        # A machine that was busy for a while made some of them look slow: those that matter get a second look.
        contending = contenders([planned.option for planned, _ in found], link, _CONTENDING, _MOST_CONTENDERS)
        if contending:
            names = ", ".join(option.name for option in contending)
            self._report(f"measuring the fastest options once more, of which the lower times count: {names}")
        again = {measure: self._again(measure) for planned, measure in found if planned.option in contending}
        options = tuple(_lower(planned, again.get(measure, ())) for planned, measure in found)
        return Plan(link, options, facts, self._graph.inputs, self._graph.outputs)

    def _again(self, measure: Measure) -> list[Planned]:
        try:
            return measure()
        except Rejected:
            return []  # what was measured before counts

    def _accepted(self, name: str, measure: Measure) -> list[Planned]:
        """None of them where a worker rejects a load or a request, which says nothing of the other options."""
        try:
            return measure()
        except Rejected as error:
            self._report(f"{name} is left out: {error}")
            return []

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
    ) -> list[Planned]:
        scales = self._scales(cut, facts) if encoding is Encoding.INT8 else {}
        stages = divided(self._model, self._graph, cut, facts, encoding, scales)
        inner = InnerTensors(stages.first, stages.crossing)
        crossing = [inner.run(_for(stages.first, row)) for row in self._single_rows()]
        given, between = _for(stages.first, self._row), crossing[0]
        packed = packed_bytes(crossing) if self._with_zstd else None
        with edge.loaded(ONNX, stages.first.SerializeToString()) as name:
            edge_seconds = _typical(lambda: edge.compute_seconds(name, given))
            compressing = self._of_zstd(packed, lambda: compressing_seconds(edge, name, given, _typical))
        with core.loaded(ONNX, stages.second.SerializeToString()) as name:
            core_seconds = _typical(lambda: core.compute_seconds(name, between))
            coding = self._of_zstd(compressing, lambda: core_coding(core, name, between, _typical))
        error = 0.0 if encoding is Encoding.PLAIN else self._error(stages)
        plain = Option(_name(cut, encoding), edge_seconds, core_seconds, stages.row_bytes, answer, error)
        division = called if encoding is Encoding.PLAIN else f"{called}-{encoding}"
        found = [Planned(plain, stages, division)]
        if packed is not None and compressing is not None and coding is not None:
            option = in_zstd(plain, _name(cut, encoding, ZSTD), packed, compressing, coding)
            found.append(Planned(option, stages, f"{division}-{ZSTD}", ZSTD))
        for option in (each.option for each in found):
            self._report(
                f"{option.name}: {option.edge_seconds * 1e3:.2f} ms on the edge, {option.core_seconds * 1e3:.2f} ms in "
                f"the core, {option.sent_bytes:,} bytes between them"
            )
        return found

    def _in_core(
        self, whole: bytes, facts: Mapping[str, TensorFacts], edge: TierWorker, core: TierWorker, answer: int
    ) -> list[Planned]:
        inputs = {name: facts[name] for name in self._graph.inputs}
        packed = packed_bytes(self._single_rows()) if self._with_zstd else None
        compressing = None
        if packed is not None:
            with edge.loaded(ONNX, _passing(inputs)) as name:
                compressing = self._of_zstd(packed, lambda: compressing_seconds(edge, name, self._row, _typical))
        with core.loaded(ONNX, whole) as name:
            seconds = _typical(lambda: core.compute_seconds(name, self._row))
            coding = self._of_zstd(compressing, lambda: core_coding(core, name, self._row, _typical))
        plain = Option(CORE, 0.0, seconds, sum(each.row_bytes for each in inputs.values()), answer)
        found = [Planned(plain, None, CORE)]
        if packed is not None and compressing is not None and coding is not None:
            option = in_zstd(plain, f"{CORE} {ZSTD}", packed, compressing, coding)
            found.append(Planned(option, None, CORE, ZSTD))
        return found

    def _of_zstd(self, before: object, measure: Callable[[], Found]) -> Found | None:
        """None if what is measured first is None, or if a worker has no zstd: then no further option is tried."""
        if before is None or not self._with_zstd:
            return None
        try:
            return measure()
        except Rejected as error:
            self._report(f"{ZSTD} is left out: {error}")
            self._with_zstd = False
            return None

    def _single_rows(self) -> list[Arrays]:
        """The first rows of the samples, each alone."""
        rows = min((len(self._samples[name]) for name in self._free), default=1)
        return [self._part(slice(row, row + 1)) for row in range(max(1, min(rows, _MOST_ROWS)))]

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
        with worker.loaded(ONNX, model) as name:
            return _typical(lambda: worker.compute_seconds(name, inputs))


def _lower(planned: Planned, again: Sequence[Planned]) -> Planned:
    """Whatever else runs on a machine only adds to a time: the lower ones count."""
    for other in again:
        if other.option.name == planned.option.name:
            return replace(planned, option=planned.option.lower(other.option))
    return planned


def _name(cut: Cut, encoding: Encoding, compression: str = "") -> str:
    ways = [each for each in (encoding, compression) if each and not (compression and each is Encoding.PLAIN)]
    return f"{'+'.join(cut.crossing)} {'+'.join(ways)}"


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


def _passing(inputs: Mapping[str, TensorFacts]) -> bytes:
    """A model that answers with its inputs."""
    from onnx import helper

    def values(end: str) -> list[Any]:
        return [
            helper.make_tensor_value_info(f"{name}{end}", helper.np_dtype_to_tensor_dtype(each.dtype), each.dims)
            for name, each in inputs.items()
        ]

    nodes = [helper.make_node("Identity", [name], [f"{name}.passed"]) for name in inputs]
    graph = helper.make_graph(nodes, "passing", values(""), values(".passed"))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(made.SerializeToString())
