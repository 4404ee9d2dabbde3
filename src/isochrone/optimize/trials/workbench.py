"""A directory for one search: the model as one file, the divided data, the built candidates. Runs the trials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isochrone.errors import InvalidArgument
from isochrone.models.file_tensors import FileTensor
from isochrone.optimize.searching.candidate import ONNXRUNTIME, OPENVINO, Candidate, Figures, Outcome, RunSettings
from isochrone.optimize.searching.stages import Offer
from isochrone.optimize.transforming.catalog import PRUNING_SERIES, TRANSFORMATIONS, Kind, applicable
from isochrone.optimize.transforming.facts import MachineFacts, ModelFacts
from isochrone.optimize.trials.accuracy import Task
from isochrone.optimize.trials.children import Limits, TaskFailed, run_task
from isochrone.optimize.trials.data import Data
from isochrone.optimize.trials.shown_paths import MODELS, with_known_paths
from isochrone.optimize.trials.source import CONFIG_FILE, Source, config_text

#: Of the timed runs of one trial.
_TIMED_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Inspected:
    inputs: tuple[FileTensor, ...]
    facts: ModelFacts


@dataclass(frozen=True, slots=True)
class Job:
    """What every trial of one search shares."""

    source: Source
    name: str
    """Of the model that the result is written as."""
    task: Task
    machine: MachineFacts
    limits: Limits
    batch: int | None = None
    seconds: float = _TIMED_SECONDS


class Workbench:
    def __init__(self, directory: Path, job: Job) -> None:
        self._directory = directory
        self._job = job
        self._float = directory / "float.onnx"
        #: Transformations → file, or the reason why there is none.
        self._built: dict[tuple[str, ...], Path | str] = {(): self._float}
        self._inputs: list[str] = []
        self._has_labels = False
        self._compared_runs = 0

    @property
    def _float_candidate(self) -> Candidate:
        return Candidate((), self._job.source.settings)

    @property
    def compared_runs(self) -> int:
        """The held-out runs that candidates are compared on; known once the float model was tried."""
        return self._compared_runs

    def inspect(self) -> Inspected:
        """Raises if the file is no model that onnxruntime can load."""
        try:
            found = run_task("inspect", self._job.limits, source=str(self._job.source.file), target=str(self._float))
        except TaskFailed as reason:
            raise InvalidArgument(self._shown(str(reason))) from None
        self._inputs = [name for name, _, _ in found["inputs"]]
        facts = ModelFacts(**{**found["facts"], "operators": frozenset(found["facts"]["operators"])})
        return Inspected(tuple(FileTensor(name, kind, tuple(shape)) for name, kind, shape in found["inputs"]), facts)

    def take_data(self, data: Data) -> None:
        for name, runs in (("calibration", data.calibration), ("held_out", data.held_out)):
            arrays = {str(number): runs[each] for number, each in enumerate(self._inputs)}
            if name == "held_out" and data.labels is not None:
                arrays["labels"] = data.labels
                self._has_labels = True
            with (self._directory / f"{name}.npz").open("wb") as file:
                np.savez(file, **arrays)

    def trial(self, candidate: Candidate) -> Outcome:
        """Builds and measures a candidate. Only the float model's trial gives the reference; it must be the first."""
        is_reference = not self._compared_runs and candidate == self._float_candidate
        if not self._compared_runs and not is_reference:
            return Outcome(candidate, None, "the float model gave no outputs to compare with")
        try:
            directory = self.model_directory(candidate)
            found = run_task(
                "run",
                self._job.limits,
                model=str(directory),
                data=str(self._directory / "held_out.npz"),
                inputs=self._inputs,
                reference=str(self._directory / "reference.npz"),
                task=self._job.task,
                has_labels=self._has_labels,
                float_model="" if is_reference else str(self.model_directory(self._float_candidate)),
                seconds=self._job.seconds,
                most_seconds=self._job.limits.seconds / 2,
            )
        except TaskFailed as reason:
            return Outcome(candidate, None, self._shown(str(reason)))
        self._compared_runs = found["runs"]
        size = self.model_file(candidate).stat().st_size
        names = ("milliseconds", "low", "high", "p99", "relative_error", "drop", "accuracy", "speed_up")
        return Outcome(candidate, Figures(**{name: found[name] for name in names}, size=size))

    def model_directory(self, candidate: Candidate) -> Path:
        """The directory of a model with this candidate as its version 1."""
        file = self._file_of(candidate.transformations)
        if isinstance(file, str):
            raise TaskFailed(file)
        job = self._job
        parts = [*candidate.transformations, *str(candidate.settings).replace(",", "").split()]
        directory = self._directory / MODELS / "_".join(parts).replace("%", "") / job.name
        if not directory.exists():
            (directory / "1").mkdir(parents=True)
            text = config_text(job.source, job.name, candidate.settings, on_gpu=job.machine.on_gpu, batch=job.batch)
            (directory / CONFIG_FILE).write_text(text)
            for each in job.source.neighbours():
                (directory / each.name).symlink_to(each)
            (directory / "1" / job.source.filename).hardlink_to(file)
        return directory

    def model_file(self, candidate: Candidate) -> Path:
        return self.model_directory(candidate) / "1" / self._job.source.filename

    def _shown(self, text: str) -> str:
        return with_known_paths(text, self._directory, self._job.source, self._job.name)

    def _file_of(self, transformations: tuple[str, ...]) -> Path | str:
        known = self._built.get(transformations)
        if known is None:
            known = self._built[transformations] = self._transformed(transformations)
        return known

    def _transformed(self, transformations: tuple[str, ...]) -> Path | str:
        source = self._file_of(transformations[:-1])
        if isinstance(source, str):
            return source
        target = self._directory / f"{len(self._built)}.onnx"
        try:
            run_task(
                "transform",
                self._job.limits,
                name=transformations[-1],
                source=str(source),
                target=str(target),
                data=str(self._directory / "calibration.npz"),
                inputs=self._inputs,
                on_gpu=self._job.machine.on_gpu,
            )
        except TaskFailed as reason:
            return f"{transformations[-1]}: {reason}"
        return target


def offered(
    facts: ModelFacts, machine: MachineFacts, own: RunSettings, *, all_settings: bool
) -> tuple[Offer, dict[str, str]]:
    """What may be tried, and what not, with reasons. ``all_settings``: the result has a configuration of its own."""
    names, refused = applicable(facts, machine)
    by_kind = {kind: tuple(name for name in names if TRANSFORMATIONS[name].kind is kind) for kind in Kind}
    series = [tuple(name for name in each if name in names) for each in PRUNING_SERIES]
    settings = [own]
    if not all_settings:
        reason = "config.pbtxt holds for all versions of the model; --new-model NAME writes another model"
        refused.update(dict.fromkeys(("threads", OPENVINO), reason))
    elif machine.on_gpu:
        refused.update(dict.fromkeys(("threads", OPENVINO), "the model runs on a GPU"))
        refused["tensorrt"] = "only CUDA is tried; execution_accelerators of the model choose TensorRT for all trials"
    else:
        counts = dict.fromkeys(count for count in (1, 2, 4, 8, machine.cpus) if count <= machine.cpus)
        settings += [RunSettings(ONNXRUNTIME, count) for count in counts]
        if machine.has_openvino:
            settings += [RunSettings(OPENVINO, count) for count in counts]
        else:
            refused[OPENVINO] = "openvino is not installed (pip install isochrone[openvino])"
        if machine.has_openvino and machine.computes_bf16:
            settings += [RunSettings(OPENVINO, count, bf16=True) for count in counts]
        else:
            refused["bf16"] = "only OpenVINO on a CPU with bfloat16 instructions computes in it"
    refused["torch.compile"] = "only models of torch could be compiled; this one is an onnx file"
    return Offer(
        tuple(dict.fromkeys(settings)),
        by_kind[Kind.GRAPH],
        by_kind[Kind.PRECISION],
        tuple(each for each in series if each),
    ), refused
