"""From a model's description to instances that are warm: the slow part of a load, off the loop's thread.

Nothing here is visible to requests. ``prepare`` runs on a thread of its own; ``serve`` then, on the loop, puts what was
prepared to work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.clock import MICROSECOND, MILLISECOND
from isochrone.errors import ConfigError
from isochrone.models.config import backend_name
from isochrone.models.digest import digest
from isochrone.worker.backends import Executable, LoadContext
from isochrone.worker.backends.registry import loader
from isochrone.worker.curve import LatencyCurve
from isochrone.worker.ensemble import EnsembleRunner, Resolve
from isochrone.worker.instance import Instance
from isochrone.worker.reshape import reshaped
from isochrone.worker.runner import Runner
from isochrone.worker.scheduler import LevelPolicy, QueueRules
from isochrone.worker.sequence_runner import SequenceRunner
from isochrone.worker.sequences import SequenceBatcher
from isochrone.worker.served import ServedVersion
from isochrone.worker.statistics import ModelStatistics
from isochrone.worker.warmup import warm_up
from isochrone.worker.watchdog import InlineWatchdog

if TYPE_CHECKING:
    from isochrone.models.repository import ModelDescription

log = structlog.get_logger()

_DEFAULT_AGEING_MS = 1000


@dataclass(frozen=True, slots=True)
class Prepared:
    """A version that is loaded and warm, and not yet served."""

    description: ModelDescription
    version: int
    digest: str
    executables: tuple[Executable, ...]
    curve: LatencyCurve
    contexts: tuple[LoadContext, ...]
    backend: str

    def discard(self) -> None:
        for executable in self.executables:
            executable.close()


def prepare(description: ModelDescription, version: int) -> Prepared:
    """Loads every instance of a version and warms it. Raises without leaving anything behind."""
    config = description.config
    directory = description.versions[version]
    backend = backend_name(config)
    own_digest = digest(config, directory)
    curve = LatencyCurve(max(1, config.max_batch_size))
    if backend == "ensemble":
        return Prepared(description, version, own_digest, (), curve, (), backend)
    contexts = tuple(_contexts(description, version, directory))
    load = loader(backend, f"{description.name}/config.pbtxt")
    executables: list[Executable] = []
    try:
        for context in contexts:
            executable = reshaped(load(context), description.signature)
            executables.append(executable)
            warm_up(executable, description, curve)
    except BaseException:
        for executable in executables:
            executable.close()
        raise
    return Prepared(description, version, own_digest, tuple(executables), curve, contexts, backend)


def serve(prepared: Prepared, resolve: Resolve, watchdog: InlineWatchdog) -> ServedVersion:
    """On the loop's thread: gives a prepared version its queue and threads."""
    description, config = prepared.description, prepared.description.config
    statistics = ModelStatistics(description.name, str(prepared.version))
    served = ServedVersion(description, prepared.version, prepared.digest, statistics)
    if prepared.backend == "ensemble":
        served.runner = EnsembleRunner(description.name, config, resolve, statistics, served.over)
        return served
    loop = asyncio.get_running_loop()
    max_rows = max(1, config.max_batch_size)
    name = f"{description.name}-{prepared.version}"

    def instance(index: int, executable: Executable, finished: Any) -> Instance:
        cpus = prepared.contexts[index].cpus
        return Instance(executable, f"{name}-{index}", max_rows, cpus, loop, finished)

    if config.HasField("sequence_batching"):
        batcher = SequenceBatcher(config, len(prepared.executables), description.directory)
        sequences = SequenceRunner(
            description.name, batcher, prepared.curve, config.max_batch_size > 0, statistics, served.over
        )
        sequences.start([instance(index, each, _nothing) for index, each in enumerate(prepared.executables)])
        served.runner = sequences
        return served
    parameters = plain_parameters(config)
    runner = Runner(
        description.name,
        queue_rules(config),
        prepared.curve,
        statistics,
        watchdog,
        served.over,
        preserve_ordering=config.dynamic_batching.preserve_ordering,
        execution_timeout_ns=_number(parameters, "execution_timeout_ms", 0, description.name) * MILLISECOND,
    )
    instances = [instance(index, each, runner.finished) for index, each in enumerate(prepared.executables)]

    def replacement() -> Instance:
        # The hung thread is still inside the old executable; a fresh one is loaded for its successor.
        context = prepared.contexts[0]
        load = loader(prepared.backend, f"{description.name}/config.pbtxt")
        return instance(0, reshaped(load(context), description.signature), runner.finished)

    runner.start(instances, replacement)
    served.runner = runner
    return served


def _nothing(*_: Any) -> None:
    """Sequence runners hand their own jobs to instances and need no call back."""


def plain_parameters(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def _number(parameters: Mapping[str, str], key: str, default: int, model: str) -> int:
    value = parameters.get(key, "").strip()
    if not value:
        return default
    if not value.isdigit():
        raise ConfigError(f"{model}/config.pbtxt", f'parameters["{key}"]', "a whole number", repr(value))
    return int(value)


def _contexts(description: ModelDescription, version: int, directory: Path) -> list[LoadContext]:
    config = description.config
    count = sum(max(1, group.count) for group in config.instance_group) or 1
    parameters = plain_parameters(config)
    affinity = _affinity(parameters.get("cpus", ""), description.name)
    return [
        LoadContext(
            description.name,
            str(version),
            directory,
            config,
            description.signature,
            index,
            affinity[index % len(affinity)] if affinity else (),
            parameters,
        )
        for index in range(count)
    ]


def _affinity(text: str, model: str) -> list[tuple[int, ...]]:
    """``cpus: "0,1;2,3"``: the CPUs of each instance, instances separated by semicolons."""
    try:
        return [tuple(int(cpu) for cpu in part.split(",")) for part in text.split(";") if part.strip()]
    except ValueError:
        raise ConfigError(f"{model}/config.pbtxt", 'parameters["cpus"]', 'CPUs as in "0,1;2,3"', repr(text)) from None


def queue_rules(config: Any) -> QueueRules:
    """A model's queue, from ``dynamic_batching`` and the parameter ``priority_ageing_ms``."""
    if not config.HasField("dynamic_batching"):
        return QueueRules()
    batching = config.dynamic_batching
    levels = int(batching.priority_levels) or 1
    policies = []
    for level in range(1, levels + 1):
        policy = batching.priority_queue_policy.get(level, batching.default_queue_policy)
        policies.append(
            LevelPolicy(
                policy.max_queue_size,
                policy.default_timeout_microseconds * MICROSECOND,
                policy.timeout_action == 1,
            )
        )
    ageing = _number(plain_parameters(config), "priority_ageing_ms", _DEFAULT_AGEING_MS, config.name)
    return QueueRules(
        max_rows=max(1, config.max_batch_size),
        preferred=tuple(sorted(batching.preferred_batch_size)),
        delay_ns=batching.max_queue_delay_microseconds * MICROSECOND,
        levels=levels,
        default_level=int(batching.default_priority_level) or 1,
        ageing_ns=ageing * MILLISECOND,
        policies=tuple(policies),
    )
