"""One optimization from the model's file to the written result: inspect, divide the data, search, confirm, publish."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from isochrone.clock import SECOND, now_ns
from isochrone.errors import ConfigError, InvalidArgument
from isochrone.models.runtimes import optional_runtime
from isochrone.optimize.publishing.places import Place, place_of
from isochrone.optimize.publishing.report import Report, report_document, report_json, report_page
from isochrone.optimize.publishing.versions import publish
from isochrone.optimize.searching.candidate import Candidate, Goal, Outcome
from isochrone.optimize.searching.choice import fastest, most_accurate_in_time, winners
from isochrone.optimize.searching.search import Found, search
from isochrone.optimize.transforming.facts import MachineFacts, machine_facts
from isochrone.optimize.trials.accuracy import MEASURES, Task
from isochrone.optimize.trials.children import Limits
from isochrone.optimize.trials.data import read_data
from isochrone.optimize.trials.gpus import check_gpu, unused_gpu
from isochrone.optimize.trials.origins import REPORT_FILE, origin_of
from isochrone.optimize.trials.source import CONFIG_FILE, Source, of_file, of_repository
from isochrone.optimize.trials.workbench import Job, Workbench, offered

#: Winners that are measured again even after the time, unless one meets the budget twice.
_CONFIRMED = 3
#: Of the memory that is free when the command begins, what a child process may use.
_MEMORY_SHARE = 0.8

#: A child process is ended after a quarter of the search's time, so that one that hangs leaves time for others.
_LEAST_TASK_SECONDS = 20.0

Listener = Callable[[tuple[Outcome, ...]], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asks for; fields are the options of ``isochrone optimize``."""

    model: str
    data: Path
    goal: Goal
    repository: Path | None = None
    version: int | None = None
    """Of a model of the repository; None: the newest that was not written by this command."""
    output: Path | None = None
    new_model: str = ""
    labels: str = ""
    task: Task | None = None
    """None: classify if there are labels, else regress."""
    batch: int | None = None
    seconds: float = 120.0
    on_gpu: bool = False
    seed: int = 0
    write_closest: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    report: Report
    written: Path | None
    """The version's or the model's directory."""
    report_directory: Path | None
    note: str = ""
    """Why nothing is written although the budget is met."""


def optimize(wanted: Wanted, listener: Listener = lambda outcomes: None) -> Result:
    """Raises for input that is not usable; then nothing was written."""
    for package in ("onnx", "onnxslim", "onnx_ir", "sympy"):
        optional_runtime(package, "optimize", "isochrone optimize")
    ends = now_ns() + round(wanted.seconds * SECOND)
    source = _source(wanted)
    place = place_of(source, wanted.output, wanted.new_model)
    if wanted.on_gpu and not source.on_gpu and place is not None and not place.is_new:
        expected = f"--new-model NAME: the config.pbtxt of '{source.name}' stays as it is, without KIND_GPU"
        raise ConfigError("--device", "gpu", expected, "a new version")
    task = wanted.task or (Task.CLASSIFY if wanted.labels else Task.REGRESS)
    machine = machine_facts(on_gpu=wanted.on_gpu or source.on_gpu)
    if machine.on_gpu:
        check_gpu("--device" if wanted.on_gpu else f"{source.directory}/{CONFIG_FILE}")
    limits = Limits(max(_LEAST_TASK_SECONDS, wanted.seconds / 4), _memory_limit())
    name = place.model if place is not None else source.name
    job = Job(source, name, task, machine, limits, wanted.batch)
    with tempfile.TemporaryDirectory(prefix="isochrone-optimize-") as folder:
        bench = Workbench(Path(folder), job)
        inspected = bench.inspect()
        data = read_data(wanted.data, inspected.inputs, batch=wanted.batch, labels=wanted.labels, seed=wanted.seed)
        bench.take_data(data)
        own_configuration = place is None or place.is_new
        offer, refused = offered(inspected.facts, machine, source.settings, all_settings=own_configuration)
        if not machine.on_gpu and (reason := unused_gpu()):
            refused["gpu"] = reason
        found = search(offer, wanted.goal, bench.trial, is_over=lambda: now_ns() >= ends, report=listener)
        if found.outcomes[0].figures is None:
            raise InvalidArgument(f"{source.file}: the float model cannot be measured: {found.outcomes[0].reason}")
        chosen, outcomes = confirmed(found, wanted.goal, bench.trial, is_over=lambda: now_ns() >= ends)
        report = Report(
            name,
            str(source.file),
            wanted.goal,
            MEASURES[task, bool(wanted.labels)],
            _machine(machine),
            {
                "calibration_runs": len(next(iter(data.calibration.values()))),
                "held_out_runs": bench.compared_runs,
                "held_out_runs_given": len(next(iter(data.held_out.values()))),
                "rows_per_run": data.rows,
            },
            outcomes,
            refused,
            str(found.ended),
            chosen,
            None if chosen else fastest(outcomes, wanted.goal),
            None if chosen else most_accurate_in_time(outcomes, wanted.goal),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        return _published(wanted, place, report, bench)


def _published(wanted: Wanted, place: Place | None, report: Report, bench: Workbench) -> Result:
    winner = report.chosen or (report.closest if wanted.write_closest else None)
    if winner is None:
        return Result(report, None, None)
    if place is None:
        return Result(report, None, None, "nothing is written: --output DIR names a directory for the model")
    if not place.is_new and winner.candidate == report.float_model.candidate:
        return Result(report, None, None, "nothing is written: the model as it is was chosen")
    built = bench.model_directory(winner.candidate)
    document = {**report_document(report), "origin": origin_of(bench.model_file(winner.candidate), Path(report.file))}
    documents = {REPORT_FILE: report_json(document) + "\n", "report.html": report_page(report)}
    written, place_of_report = publish(place, built, documents)
    return Result(report, written, place_of_report)


def _source(wanted: Wanted) -> Source:
    if wanted.repository is not None and wanted.output is not None:
        raise ConfigError("--output", "directory", "either --output or --model-repository", "both")
    if wanted.repository is not None:
        return of_repository(wanted.repository, wanted.model, wanted.version)
    if wanted.version is not None:
        raise ConfigError("--version", "number", "a model of --model-repository", "a file")
    return of_file(Path(wanted.model))


def confirmed(
    found: Found, goal: Goal, trial: Callable[[Candidate], Outcome], *, is_over: Callable[[], bool] = lambda: False
) -> tuple[Outcome | None, tuple[Outcome, ...]]:
    """The best that meets the goal in two measurements, and all outcomes with the slower one of each repeated.

    The best of many noisy times is too good by the noise. A candidate that fails the second time has failed.
    """
    outcomes = list(found.outcomes)
    for place, winner in enumerate(winners(outcomes, goal)):
        if place >= _CONFIRMED and is_over():
            break
        again = trial(winner.candidate)
        if winner.figures is None or again.figures is None:
            # The float model's own figures stay: all others are shown beside them.
            if winner is not found.outcomes[0]:
                failed = Outcome(winner.candidate, None, f"failed when it was measured again: {again.reason}")
                outcomes[outcomes.index(winner)] = failed
            continue
        slower = max(winner.figures, again.figures, key=lambda figures: figures.milliseconds)
        updated = replace(winner, figures=slower)
        outcomes[outcomes.index(winner)] = updated
        if goal.is_met(slower):
            return updated, tuple(outcomes)
    return None, tuple(outcomes)


def _machine(machine: MachineFacts) -> dict[str, object]:
    return {
        "cpus": machine.cpus,
        "device": "gpu" if machine.on_gpu else "cpu",
        "int8_dot_products": machine.has_int8_dot_products,
        "fp16": machine.computes_fp16,
        "bf16": machine.computes_bf16,
    }


def _memory_limit(meminfo: Path = Path("/proc/meminfo")) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(int(line.split()[1]) * 1024 * _MEMORY_SHARE)
    return 0
