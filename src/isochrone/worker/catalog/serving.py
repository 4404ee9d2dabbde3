"""From a version that is loaded and warm to one that serves: its queue, its threads, and the runner that owns them.

On the loop's thread. Requests see none of it before the catalog publishes the version.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

from isochrone.errors import Internal, IsochroneError
from isochrone.worker.activation_cache.reuse import ActivationReuse
from isochrone.worker.backends.interface import Executable
from isochrone.worker.catalog.loading import Prepared, generation_settings_of, load_again, remote_settings_of
from isochrone.worker.divided.runner import DividedRunner
from isochrone.worker.ensembles.pins import Resolve
from isochrone.worker.ensembles.runner import EnsembleRunner
from isochrone.worker.execution.batches.batch_runner import BatchRunner
from isochrone.worker.execution.inline.compute_stage import ComputeStage
from isochrone.worker.execution.inline.watchdog import InlineWatchdog
from isochrone.worker.execution.instances.batch import Batch
from isochrone.worker.execution.instances.instance import Instance
from isochrone.worker.execution.instances.replacement import TakeInstance
from isochrone.worker.execution.instances.resource_gate import ResourceGate, SharedResources, demands_of
from isochrone.worker.execution.runner import Runner
from isochrone.worker.execution.runner_context import RunnerContext
from isochrone.worker.execution.streams.stream_runner import StreamRunner
from isochrone.worker.generation.runner import GenerationRunner
from isochrone.worker.remote.runner import RemoteRunner
from isochrone.worker.sequences.batcher import SequenceBatcher
from isochrone.worker.sequences.runner import SequenceRunner
from isochrone.worker.served_version import ServedVersion
from isochrone.worker.statistics import ModelStatistics


def serve_all(prepared: Iterable[Prepared], start: Callable[[Prepared], ServedVersion]) -> list[ServedVersion]:
    """Gives prepared versions their queues and threads, by ``start``: all of them or none."""
    made: list[ServedVersion] = []
    try:
        for each in prepared:
            served = start(each)
            made.append(served)
    except BaseException as error:
        for served in made:
            served.runner.release()
        if isinstance(error, Exception) and not isinstance(error, IsochroneError):
            raise reportable(error) from error
        raise
    return made


def reportable(error: Exception) -> IsochroneError:
    return error if isinstance(error, IsochroneError) else Internal(f"{type(error).__name__}: {error}")


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
        remote = remote_settings_of(description, prepared.version)
        served.runner = RemoteRunner(name, remote, description.signature, statistics, ended)
        return served
    if prepared.divided is not None:
        divided = DividedRunner(name, prepared.divided, resolve, statistics, ended)
        divided.start()
        served.runner = divided
        return served
    if prepared.engines:
        settings = generation_settings_of(description)
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
                result: Instance | IsochroneError = instance(index, load_again(prepared, index))
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


def _nothing(*_: Any) -> None:
    """Runners of sequences and streams submit jobs of their own and need no callback."""
