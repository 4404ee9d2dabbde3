"""A profile from end to end: it reads the model, asks the search what to measure, and has it measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from isochrone.clock import SECOND, now_ns
from isochrone.errors import ConfigError, InvalidArgument, NotFound
from isochrone.models.configuration.backends import backend_name
from isochrone.models.instances import configured_instances
from isochrone.models.repository.description import ModelDescription
from isochrone.models.repository.layout import missing_model_file
from isochrone.models.repository.repository import Repository
from isochrone.optimize.profiling.outcome import Failure, Outcome
from isochrone.optimize.profiling.running.inputs import check_shapes
from isochrone.optimize.profiling.running.memory import available_bytes, size_of_files
from isochrone.optimize.profiling.running.messages import Measured, Operator
from isochrone.optimize.profiling.running.process import ModelProcess, RunFailed
from isochrone.optimize.profiling.search.search import Point, Search
from isochrone.optimize.profiling.search.space import Configuration, Space, make_space
from isochrone.optimize.thread_parameters import THREADS_PARAMETER
from isochrone.suggestions import suggestion

#: Of one configuration: shorter runs meet too few turns of the scheduler, longer ones tell little more.
LEAST_SECONDS = 0.15
MOST_SECONDS = 0.6
_OPERATOR_SECONDS = 0.5
Report = Callable[[str], None]


def read_model(repository: Path, model: str, version: int | None) -> tuple[ModelDescription, int]:
    """The description of a model that can be profiled, and the version: the newest that is served unless it is given.

    Raises for all others, with what to change.
    """
    models = Repository([repository])
    try:
        description = models.read(model, versions=None if version is None else [version])
    except NotFound:
        names = sorted(models.scan())
        expected = suggestion(model, names, "model") if names else "a model: the repository has none"
        raise ConfigError(str(repository), "model", expected, f"'{model}'") from None
    number = max(description.versions) if version is None else version
    described = description.of_version(number)
    _check_kind(described)
    missing = missing_model_file(described.config, description.versions[number])
    if missing is not None:
        raise missing
    return described, number


def _check_kind(description: ModelDescription) -> None:
    config, where = description.config, description.config_source
    backend = backend_name(config, where)
    if backend in ("ensemble", "generation"):
        what = "an ensemble: profile the models of its steps" if backend == "ensemble" else "one that generates text"
        raise ConfigError(where, "backend", "a model that answers a batch with a batch", what)
    if not config.input:
        raise ConfigError(where, "input", "the inputs of the model, which only its own code knows", "none")
    if config.HasField("sequence_batching"):
        raise ConfigError(where, "sequence_batching", "none: a profile sends no sequences", "one")
    if config.model_transaction_policy.decoupled:
        raise ConfigError(where, "model_transaction_policy.decoupled", "false: a profile reads no streams", "true")
    if any(each.gpu is not None for each in configured_instances(config)):
        raise ConfigError(where, "instance_group.kind", "KIND_CPU: a profile measures instances on CPUs", "KIND_GPU")


def space_of(description: ModelDescription, version: int, cores: int) -> Space:
    """What can be tried with so many cores. Instances are limited by memory: each holds the weights."""
    size = size_of_files(description.versions[version])
    free = available_bytes()
    if free is not None and size > free:
        raise InvalidArgument(
            f"model '{description.name}' version {version}: expected files that fit into memory ({_shown(free)} are"
            f" free), given {_shown(size)}"
        )
    most = cores if free is None or not size else max(1, free // size)
    has_threads = backend_name(description.config) in THREADS_PARAMETER
    return make_space(description.config.max_batch_size, cores, has_threads=has_threads, most_instances=most)


def profile(
    repository: Path,
    description: ModelDescription,
    version: int,
    *,
    slo_ns: float | None,
    seconds: float,
    shapes: Mapping[str, Sequence[int]],
    report: Report,
) -> Outcome:
    """Measures until the search ends or ``seconds`` have passed. ``report`` gets a line for each measurement."""
    check_shapes(description.signature, shapes)
    cores = len(os.sched_getaffinity(0))
    space = space_of(description, version, cores)
    search, failures = Search(space, slo_ns), list[Failure]()
    began = now_ns()
    with ModelProcess(repository, description.name, version, shapes) as process:
        while (configuration := search.propose()) is not None and (now_ns() - began) / SECOND < seconds:
            try:
                point = measured(process, configuration)
            except RunFailed as error:
                if not search.points:
                    raise
                search.fail(configuration)
                failures.append(Failure(configuration, error.message))
                report(f"{configuration}: failed: {error.message}")
            else:
                search.add(point)
                report(shown_point(point))
        found = search.found()
        if found is None:
            raise InvalidArgument("--seconds: expected time for at least one measurement, given less")
        operators = _operators(process, found.configuration, report)
    return Outcome(
        model=description.name,
        version=version,
        backend=backend_name(description.config),
        cores=cores,
        slo_ns=slo_ns,
        points=search.points,
        failures=tuple(failures),
        found=found,
        operators=operators,
        sweep_points=len(space.sweep()),
        seconds=(now_ns() - began) / SECOND,
        cut_short=configuration is not None,
    )


def measured(
    process: ModelProcess,
    configuration: Configuration,
    *,
    least_seconds: float = LEAST_SECONDS,
    seconds: float = MOST_SECONDS,
) -> Point:
    got: Measured = process.measure(
        configuration.batch,
        configuration.threads,
        configuration.instances,
        least_seconds=least_seconds,
        seconds=seconds,
    )
    others = got.other_seconds / got.seconds
    return Point(configuration, got.run_ns, got.p99_ns, got.rows_per_second, got.runs, got.memory_bytes, others)


def _operators(process: ModelProcess, configuration: Configuration, report: Report) -> tuple[Operator, ...]:
    try:
        found = process.operators(configuration.batch, configuration.threads, seconds=_OPERATOR_SECONDS)
    except RunFailed as error:
        report(f"operators: not profiled: {error.message}")
        return ()
    return tuple(found)


def shown_point(point: Point) -> str:
    latency = point.value.latency_ns / 1e6
    return f"{point.configuration}: {point.rows_per_second:,.0f} rows/s, latency {latency:.3g} ms"


def _shown(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"
