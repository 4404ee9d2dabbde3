"""From a model's description to a version that is loaded and warm, on a thread; ``serving`` then starts it.

Requests see none of it before the catalog publishes the version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from isochrone.clock import MICROSECOND, MILLISECOND, now_ns
from isochrone.models.configuration.backends import WITHOUT_INSTANCES, backend_name
from isochrone.models.repository.digest import DigestMemory, digest
from isochrone.worker.activation_cache.settings import ActivationSettings, read_activation_settings
from isochrone.worker.backends.generative import GenerativeExecutable
from isochrone.worker.backends.interface import Executable, LoadContext
from isochrone.worker.backends.registry import loader
from isochrone.worker.catalog.instance_groups import check_group_settings, load_contexts, plain_parameters
from isochrone.worker.catalog.load_settings import LoadSettings
from isochrone.worker.catalog.plain_text import check_stays_in_memory
from isochrone.worker.catalog.queue_rules import queue_rules, read_deadline_ns, whole_number
from isochrone.worker.catalog.warmup import batch_sizes, warm_up
from isochrone.worker.divided.settings import DividedSettings, divided_settings
from isochrone.worker.execution.instances.reshape import reshaped
from isochrone.worker.generation.engine import GenerationEngine
from isochrone.worker.generation.settings import GenerationSettings, read_settings
from isochrone.worker.remote.settings import RemoteSettings, remote_settings
from isochrone.worker.scheduling.batch_queue import QueueRules
from isochrone.worker.scheduling.latency_curve import LatencyCurve

if TYPE_CHECKING:
    from isochrone.models.repository.description import ModelDescription
    from isochrone.worker.model_calls.server import CallsOfModels

log = structlog.get_logger(__name__)

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


def prepare_changed(
    description: ModelDescription,
    served_digest: Callable[[int], str | None],
    digests: DigestMemory,
    settings: LoadSettings,
    calls: CallsOfModels | None,
) -> list[Prepared]:
    """Loads every version that is new or whose digest differs: all of them or none. On a thread.

    ``served_digest``: that of a version that is served; None: it is not.
    """
    prepared: list[Prepared] = []
    try:
        for version in description.versions:
            own = description.of_version(version)
            given = own.model_object
            found = digests.digest(own.digested_config(version), own.stored(version)) if given is None else given.digest
            if served_digest(version) != found:
                prepared.append(prepare_with_retries(own, version, found, settings, calls))
    except BaseException:
        discard_all(prepared)
        raise
    return prepared


def discard_all(prepared: Iterable[Prepared]) -> None:
    for each in prepared:
        each.discard()


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
    deadline_ns = read_deadline_ns(parameters, description.config_source)
    activations = read_activation_settings(parameters, config, description.signature, description.config_source)
    if backend == "remote":
        remote_settings_of(description, version)
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
    timeout_ms = whole_number(parameters, "execution_timeout_ms", 0, description.config_source)
    generation = generation_settings_of(description) if backend == "generation" else None
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


def load_again(prepared: Prepared, index: int) -> Executable:
    """Loads and warms one instance once more, in place of one that hangs. On a thread."""
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


def generation_settings_of(description: ModelDescription) -> GenerationSettings:
    return read_settings(plain_parameters(description.config), description.config_source)


def remote_settings_of(description: ModelDescription, version: int) -> RemoteSettings:
    return remote_settings(plain_parameters(description.config), description.name, version, description.config_source)


def _close_all(executables: Iterable[Executable], model: str) -> None:
    """Closes every executable, even if a model's ``close`` raises."""
    for executable in executables:
        try:
            executable.close()
        except Exception as error:
            log.warning("an instance that is not served failed to close", model=model, error=str(error))
