"""From a model's description to a version that can serve.

``prepare`` loads and warms the instances on a thread; ``serve`` then gives them a queue and threads, on the loop.
Requests see none of it before the catalog publishes the version.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.clock import MICROSECOND, MILLISECOND, now_ns
from isochrone.errors import ConfigError, Internal, IsochroneError
from isochrone.models.configuration.backends import WITHOUT_INSTANCES, backend_name
from isochrone.models.repository.digest import digest
from isochrone.worker.activation_cache.reuse import ActivationReuse
from isochrone.worker.activation_cache.settings import ActivationSettings, read_activation_settings
from isochrone.worker.backends.generative import GenerativeExecutable
from isochrone.worker.backends.interface import Executable, LoadContext
from isochrone.worker.backends.registry import loader
from isochrone.worker.catalog.instance_groups import check_group_settings, load_contexts, plain_parameters
from isochrone.worker.catalog.load_settings import LoadSettings
from isochrone.worker.catalog.plain_text import check_stays_in_memory
from isochrone.worker.catalog.warmup import batch_sizes, warm_up
from isochrone.worker.divided.runner import DividedRunner
from isochrone.worker.divided.settings import DividedSettings, divided_settings
from isochrone.worker.ensembles.pins import Resolve
from isochrone.worker.ensembles.runner import EnsembleRunner
from isochrone.worker.execution.batches.batch_runner import BatchRunner
from isochrone.worker.execution.inline.compute_stage import ComputeStage
from isochrone.worker.execution.inline.watchdog import InlineWatchdog
from isochrone.worker.execution.instances.batch import Batch
from isochrone.worker.execution.instances.instance import Instance
from isochrone.worker.execution.instances.replacement import TakeInstance
from isochrone.worker.execution.instances.reshape import reshaped
from isochrone.worker.execution.instances.resource_gate import ResourceGate, SharedResources, demands_of
from isochrone.worker.execution.runner import Runner
from isochrone.worker.execution.runner_context import RunnerContext
from isochrone.worker.execution.streams.stream_runner import StreamRunner
from isochrone.worker.generation.engine import GenerationEngine
from isochrone.worker.generation.runner import GenerationRunner
from isochrone.worker.generation.settings import GenerationSettings, read_settings
from isochrone.worker.remote.runner import RemoteRunner
from isochrone.worker.remote.settings import RemoteSettings, remote_settings
from isochrone.worker.scheduling.batch_queue import LevelPolicy, QueueRules
from isochrone.worker.scheduling.latency_curve import LatencyCurve
from isochrone.worker.sequences.batcher import SequenceBatcher
from isochrone.worker.sequences.runner import SequenceRunner
from isochrone.worker.served_version import ServedVersion
from isochrone.worker.statistics import ModelStatistics

if TYPE_CHECKING:
    from isochrone.models.repository.description import ModelDescription
    from isochrone.worker.model_calls.server import CallsOfModels

log = structlog.get_logger(__name__)

_DEFAULT_AGEING_MS = 1000
_DEFAULT_SETTINGS = LoadSettings()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A version that is loaded and warm, but not yet served."""

    description: ModelDescription
    version: int
    digest: str
    executables: tuple[Executable, ...]
    curve: LatencyCurve
    contexts: tuple[LoadContext, ...]
    backend: str
    rules: QueueRules
    #: 0: none, or the backend enforces it.
    execution_timeout_ns: int = 0
    #: Of requests that state none; 0: none.
    default_deadline_ns: int = 0
    #: None: outputs are not reused for similar pictures.
    activations: ActivationSettings | None = None
    #: Of a model that generates tokens: they own its executables.
    engines: tuple[GenerationEngine, ...] = ()
    #: Of a divided model.
    divided: DividedSettings | None = None

    def discard(self) -> None:
        """Frees a version that will not be served."""
        for engine in self.engines:
            engine.close()
        _close_all(() if self.engines else self.executables, self.description.name)


def prepare_with_retries(
    description: ModelDescription,
    version: int,
    own_digest: str | None,
    settings: LoadSettings,
    calls: CallsOfModels | None = None,
) -> Prepared:
    """``prepare``, with the retries of the settings."""
    for attempt in range(1, settings.retries + 1):
        try:
            return prepare(description, version, own_digest, settings, calls)
        except Exception as error:
            log.warning(
                "a load failed and is retried",
                model=description.name,
                version=version,
                attempt=attempt,
                retries=settings.retries,
                error=str(error),
            )
    return prepare(description, version, own_digest, settings, calls)


def prepare(
    description: ModelDescription,
    version: int,
    own_digest: str | None = None,
    settings: LoadSettings = _DEFAULT_SETTINGS,
    calls: CallsOfModels | None = None,
) -> Prepared:
    """Loads and warms every instance of a version. If it raises, everything it loaded is freed.

    ``own_digest`` is the version's digest, if the caller knows it; ``calls`` answers models that call others.
    """
    config = description.config
    directory = description.versions[version]
    backend = backend_name(config)
    if own_digest is None:
        own_digest = digest(description.digested_config(version), description.stored(version))
    check_stays_in_memory(description, version, backend)
    curve = LatencyCurve(max(1, config.max_batch_size))
    rules = queue_rules(config)
    parameters = plain_parameters(config)
    deadline_ns = _deadline_ns(parameters, description.config_source)
    activations = read_activation_settings(parameters, config, description.signature, description.config_source)
    if backend == "remote":
        _remote_settings(description, version)
    if backend in WITHOUT_INSTANCES:
        divided = (
            divided_settings(config, parameters, directory, description.config_source) if backend == "divided" else None
        )
        return Prepared(
            description,
            version,
            own_digest,
            (),
            curve,
            (),
            backend,
            rules,
            default_deadline_ns=deadline_ns,
            divided=divided,
        )
    timeout_ms = _number(parameters, "execution_timeout_ms", 0, description.config_source)
    generation = _generation_settings(description) if backend == "generation" else None
    check_group_settings(description, settings)
    server = None if calls is None else calls.of(description.name, str(version))
    contexts = tuple(load_contexts(description, version, directory, backend, settings, server))
    load = loader(backend, description.config_source)
    executables: list[Executable] = []
    engines: list[GenerationEngine] = []
    loses_overlap = False
    if server is not None:
        server.is_loading = True
    try:
        for context in contexts:
            started = now_ns()
            inner = load(context)
            executables.append(inner)
            if inner.ends_long_runs:
                timeout_ms = 0
            executable = executables[-1] = reshaped(inner, description.signature)
            loses_overlap = loses_overlap or (inner.overlaps and not executable.overlaps)
            loaded = now_ns()
            if generation is not None and isinstance(executable, GenerativeExecutable):
                name = f"{description.name}-{version}-{context.instance}"
                engines.append(GenerationEngine(executable, name, generation.rules, context.cpus))
                engines[-1].warm()
            warm_up(executable, description, curve)
            log.debug(
                "instance loaded",
                model=description.name,
                version=version,
                instance=context.instance,
                backend=backend,
                load_ms=(loaded - started) // MILLISECOND,
                warmup_ms=(now_ns() - loaded) // MILLISECOND,
                estimates_us={rows: curve.estimate(rows) // MICROSECOND for rows in batch_sizes(config)},
            )
    except BaseException:
        for engine in engines:
            engine.close()
        _close_all(executables[len(engines) :], description.name)
        raise
    finally:
        if server is not None:
            server.is_loading = False
    if loses_overlap:
        log.warning(
            "reshape: the model runs one batch at a time, and reads CUDA shared memory through the host; declare the "
            "model's own dims to avoid that",
            model=description.name,
            version=version,
        )
    return Prepared(
        description,
        version,
        own_digest,
        tuple(executables),
        curve,
        contexts,
        backend,
        rules,
        timeout_ms * MILLISECOND,
        deadline_ns,
        activations,
        tuple(engines),
    )


def _generation_settings(description: ModelDescription) -> GenerationSettings:
    return read_settings(plain_parameters(description.config), description.config_source)


def _remote_settings(description: ModelDescription, version: int) -> RemoteSettings:
    return remote_settings(plain_parameters(description.config), description.name, version, description.config_source)


def _close_all(executables: Iterable[Executable], model: str) -> None:
    """Closes every executable, even if a model's ``close`` raises."""
    for executable in executables:
        try:
            executable.close()
        except Exception as error:
            log.warning("an instance that is not served failed to close", model=model, error=str(error))


def serve(
    prepared: Prepared,
    resolve: Resolve,
    watchdog: InlineWatchdog,
    stage: ComputeStage,
    resources: SharedResources | None = None,
) -> ServedVersion:
    """Gives a prepared version its queue and threads. On the loop's thread."""
    description, config = prepared.description, prepared.description.config
    statistics = ModelStatistics(description.name, str(prepared.version))
    served = ServedVersion(description, prepared.version, prepared.digest, statistics, watchdog)
    served.default_deadline_ns = prepared.default_deadline_ns
    if prepared.activations is not None:
        served.activations = ActivationReuse(prepared.activations, prepared.digest, statistics)
    if prepared.backend == "ensemble":
        served.runner = EnsembleRunner(description.name, config, resolve, statistics, served.request_ended)
        return served
    name, ended = description.name, served.request_ended
    if prepared.backend == "remote":
        remote = _remote_settings(description, prepared.version)
        served.runner = RemoteRunner(name, remote, description.signature, statistics, ended)
        return served
    if prepared.divided is not None:
        divided = DividedRunner(name, prepared.divided, resolve, statistics, ended)
        divided.start()
        served.runner = divided
        return served
    if prepared.engines:
        settings = _generation_settings(description)
        served.runner = GenerationRunner(name, prepared.engines, settings, statistics, ended, served.set_ready)
        return served
    context = RunnerContext(
        name,
        prepared.rules,
        prepared.curve,
        statistics,
        watchdog,
        stage,
        ended,
        execution_timeout_ns=prepared.execution_timeout_ns,
        preserve_ordering=config.dynamic_batching.preserve_ordering,
    )
    runner: BatchRunner | StreamRunner | SequenceRunner
    finished: Callable[[Instance, Batch], None] = _nothing
    if config.HasField("sequence_batching"):
        batcher = SequenceBatcher(config, len(prepared.executables), description.directory)
        runner = SequenceRunner(context, batcher, batched=config.max_batch_size > 0)
    elif prepared.executables[0].decoupled:
        runner = StreamRunner(context)
    else:
        runner = BatchRunner(context, _gate(config, resources))
        finished = runner.finished
    # Batches of sequences are gathered on the host.
    on_devices = all(each.takes_device_arrays for each in prepared.executables)
    on_devices = on_devices and not config.HasField("sequence_batching")
    served.runs_on_devices = on_devices
    _start(runner, prepared, finished)
    served.runner = runner
    return served


def _gate(config: Any, resources: SharedResources | None) -> ResourceGate | None:
    demands = demands_of(config)
    if resources is None or not any(demand.needs for demand in demands):
        return None
    for demand in demands:
        resources.limiter.check(demand.needs, config.name)
    return ResourceGate(resources, demands)


def _start(runner: Runner, prepared: Prepared, finished: Callable[[Instance, Batch], None]) -> None:
    """Gives a runner its instances and a function that replaces them."""
    loop = asyncio.get_running_loop()
    model = prepared.description.name
    max_rows = max(1, prepared.description.config.max_batch_size)
    name = f"{model}-{prepared.version}"

    def instance(index: int, executable: Executable) -> Instance:
        cpus = prepared.contexts[index].cpus
        if executable.takes_requests:
            executable.outlet_of = runner.outlet_of
        return Instance(executable, f"{name}-{index}", max_rows, cpus, loop, finished, index)

    def replacement(index: int, made: TakeInstance) -> None:
        # The hung thread still uses the old executable, so a new one is loaded, on a thread: a load takes seconds and
        # may hang.
        def load_replacement() -> None:
            try:
                result: Instance | IsochroneError = instance(index, _load_replacement(prepared, index))
            except IsochroneError as error:
                result = error
            except BaseException as error:
                result = Internal(f"loading model '{model}' again: {type(error).__name__}: {error}")
            try:
                loop.call_soon_threadsafe(made, result)
            except RuntimeError:  # the loop is closed: nobody takes the instance
                if isinstance(result, Instance):
                    result.close()

        threading.Thread(target=load_replacement, name=f"{name}-again", daemon=True).start()

    runner.start([instance(index, each) for index, each in enumerate(prepared.executables)], replacement)


def _load_replacement(prepared: Prepared, index: int) -> Executable:
    description = prepared.description
    executable = loader(prepared.backend, description.config_source)(prepared.contexts[index])
    try:
        executable = reshaped(executable, description.signature)
        # With a curve of its own: the live curve belongs to the loop's thread.
        warm_up(executable, description, LatencyCurve(prepared.curve.max_rows))
    except BaseException:
        _close_all((executable,), description.name)
        raise
    return executable


def _nothing(*_: Any) -> None:
    """Runners of sequences and streams submit jobs of their own and need no callback."""


def _number(parameters: Mapping[str, str], key: str, default: int, where: str) -> int:
    value = parameters.get(key, "").strip()
    if not value:
        return default
    if not value.isdigit():
        raise ConfigError(where, f'parameters["{key}"]', "a whole number", repr(value))
    return int(value)


def _deadline_ns(parameters: Mapping[str, str], where: str) -> int:
    value = parameters.get("deadline_ms", "").strip()
    try:
        milliseconds = float(value or 0)
        if not 0 <= milliseconds < 1e12:
            raise ValueError
    except ValueError:
        expected = "milliseconds, as in 50 or 2.5"
        raise ConfigError(where, 'parameters["deadline_ms"]', expected, repr(value)) from None
    return round(milliseconds * MILLISECOND)


def queue_rules(config: Any) -> QueueRules:
    """The rules of a model's queue, from ``dynamic_batching`` and the parameter ``priority_ageing_ms``."""
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
