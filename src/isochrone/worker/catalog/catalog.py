"""The catalog: the model versions that are served, and how they change (load, unload, poll).

A new version is loaded and warmed while the old one serves. Then one assignment on the loop's thread publishes it, and
the old version drains and is freed. A load that fails changes nothing but the reason in the index. Requests look models
up in one dictionary, through ``find``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.clock import now_ns
from isochrone.errors import InvalidArgument, IsochroneError, NotFound, NoVersion, Unavailable
from isochrone.models.configuration.ensemble_graph import step_names
from isochrone.models.repository.description import ModelEntry
from isochrone.models.repository.digest import DigestMemory
from isochrone.models.repository.names import validate_model_name
from isochrone.models.repository.repository import Repository
from isochrone.models.repository.versions import version_number
from isochrone.worker.catalog.dependencies import load_order
from isochrone.worker.catalog.dependents import Dependents
from isochrone.worker.catalog.drains import Drains
from isochrone.worker.catalog.load_parameters import LoadParameters
from isochrone.worker.catalog.load_settings import LoadSettings
from isochrone.worker.catalog.load_turns import LoadAbandoned, LoadTurn, LoadTurns
from isochrone.worker.catalog.loading import Prepared, discard_all, prepare_changed
from isochrone.worker.catalog.off_loop import in_thread
from isochrone.worker.catalog.serving import reportable, serve, serve_all
from isochrone.worker.catalog.states import (
    LOADING,
    READY,
    UNAVAILABLE,
    UNLOADED,
    UNLOADING,
    VersionStates,
    not_a_version,
)
from isochrone.worker.execution.inline.compute_stage import ComputeStage
from isochrone.worker.execution.inline.watchdog import InlineWatchdog
from isochrone.worker.execution.instances.resource_gate import SharedResources
from isochrone.worker.model_calls.server import CallsOfModels
from isochrone.worker.response_cache import ResponseCache

if TYPE_CHECKING:
    from isochrone.models.repository.description import ModelDescription
    from isochrone.observe.model_metrics import FamilySnapshot
    from isochrone.observe.snapshot import CacheSnapshot
    from isochrone.secure.signing.signed_version import Provenance
    from isochrone.worker.served_version import ServedVersion

log = structlog.get_logger(__name__)

#: Triton's messages, which its programs match: there is nothing to load, or a version fails to load.
_NOT_FOUND_TO_LOAD = "failed to load '{}', failed to poll from model repository"
_LOAD_FAILED = "load failed for model '{}'"


class Catalog:
    """Runs on the loop's thread, except for the work that it sends to threads."""

    def __init__(
        self,
        repository: Repository,
        cache: ResponseCache | None,
        drain_seconds: float,
        loading: LoadSettings | None = None,
    ) -> None:
        self.repository = repository
        self.watchdog = InlineWatchdog()
        self.stage = ComputeStage()
        self._cache = cache
        self._loading = loading or LoadSettings()
        limits = self._loading.rate_limits
        self._resources = None if limits is None else SharedResources(limits)
        #: (name, version) → the version that serves it; version "" is the newest.
        self._served: dict[tuple[str, str], ServedVersion] = {}
        #: The look-up of the hot path, bound once; ``find`` raises the error of a miss.
        self.served: Callable[[tuple[str, str]], ServedVersion | None] = self._served.get
        self._states = VersionStates()
        #: By (name, version), as its last load found it.
        self._provenance: dict[tuple[str, str], Provenance] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._turns = LoadTurns()
        #: The models of the repository as the last scan found them, by name.
        self.entries: Mapping[str, ModelEntry] = {}
        self._drains = Drains(self.served, self._states, cache, drain_seconds)
        self._digests = DigestMemory()
        self._dependents = Dependents(self)
        self._calls: CallsOfModels | None = None
        self._closing = False
        #: Called with each version before requests can find it.
        self.on_served: Callable[[ServedVersion], None] | None = None

    # Look-up.

    def find(self, name: str, version: str) -> ServedVersion:
        """The version that serves a request; ``version`` "" means the newest."""
        served = self._served.get((name, version))
        if served is None:
            raise self._states.unserved(name, version) if self._known(name) else self.repository.unknown(name)
        return served

    def _known(self, name: str) -> bool:
        return self._states.knows(name) or name in self.entries

    def versions(self, name: str) -> list[ServedVersion]:
        found = [served for (model, version), served in self._served.items() if model == name and version]
        return sorted(found, key=lambda served: served.number)

    def all_versions(self) -> list[ServedVersion]:
        found = [served for (_, version), served in self._served.items() if version]
        return sorted(found, key=lambda served: (served.model_name, served.number))

    def is_ready(self, name: str, version: str) -> bool:
        if version and version_number(version) is None:
            raise not_a_version(version)
        served = self._served.get((name, version))
        return served is not None and served.is_ready

    def index(self) -> list[tuple[str, str, str, str]]:
        """(name, version, state, reason) of every known version."""
        return self._states.rows(self.entries)

    def failure(self, name: str) -> str | None:
        """The reason for which no version of a model is served, if its load failed."""
        return self._states.failure(name)

    def provenance(self, name: str, version: str) -> Provenance | None:
        """Who signed a version that is served; None: nobody had to."""
        return self._provenance.get((name, version)) if (name, version) in self._served else None

    def metrics_of_models(self) -> tuple[FamilySnapshot, ...]:
        """The metrics that models define themselves."""
        return () if self._calls is None else self._calls.metrics.snapshot()

    def cache_snapshot(self) -> CacheSnapshot | None:
        """The counts of the response cache; None: there is no cache."""
        return None if self._cache is None else self._cache.snapshot()

    # Load.

    async def scan(self) -> Mapping[str, ModelEntry]:
        """Scans the repository and remembers the names."""
        self.entries = await in_thread(self.repository.scan)
        return self.entries

    async def load(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Serves a model as the repository describes it. Returns when it is ready."""
        failed = await self.load_all({name: LoadParameters.read(parameters or {})})
        if name in failed:
            raise failed[name]

    async def load_all(self, requested: Mapping[str, LoadParameters]) -> dict[str, IsochroneError]:
        """Loads models, and before an ensemble the models of its steps. Returns the errors of those that failed."""
        arrived = self._turns.arrive()
        for name in requested:
            # Before anything stores the name: it comes from the network.
            validate_model_name(name)

        def steps(name: str) -> tuple[str, ...]:
            return self.repository.steps(name, requested[name].config if name in requested else None)

        order, circular = await in_thread(lambda: load_order(requested, steps))
        gate, records = asyncio.Semaphore(self._loading.threads), self._dependents.records
        failed: dict[str, IsochroneError] = {}
        tasks: dict[str, asyncio.Task[None]] = {}

        async def load(name: str) -> None:
            before = [tasks[step] for step in order[name] if step in tasks and step not in circular]
            if before:
                await asyncio.wait(before)
            try:
                if name in circular:
                    self.note_failure(name, (), circular[name])
                    raise circular[name].within(_LOAD_FAILED.format(name))
                if name in requested or not self.versions(name) or not records.is_customised(name):
                    async with gate:
                        await self.load_alone(name, requested.get(name) or LoadParameters(), arrived)
            except IsochroneError as error:
                failed[name] = error
            except Exception as error:
                # A defect in the load of one model must not end the worker, nor the loads of the others.
                log.error("the load of a model ended with an unexpected error", model=name, exc_info=error)
                failed[name] = reportable(error)
                self.note_failure(name, (), failed[name])
            if name in requested and self._known(name):
                records.loaded_by_name(name, requested[name])

        for name in order:
            tasks[name] = asyncio.ensure_future(load(name))
        await asyncio.gather(*tasks.values())
        return failed

    async def load_alone(self, name: str, parameters: LoadParameters, arrived: int = 0) -> None:
        """Loads one model without its steps, then updates the ensembles that run it.

        ``arrived`` is the number of the call in order of arrival; 0: the call arrives now.
        """
        # The name of a step can be any text.
        validate_model_name(name)
        lock = self.lock(name)
        turn = self._turns.enter(name, parameters.versions, arrived or self._turns.arrive())
        try:
            async with lock:
                if self._closing:
                    raise Unavailable("the server is stopping")
                turn.check()
                await self._load(name, parameters, turn)
        finally:
            self._turns.leave(turn)
            if not self._known(name) and not lock.locked():
                self._locks.pop(name, None)
        await self._dependents.recheck(name)
        await self._dependents.reload_waiting(name)

    async def _load(self, name: str, parameters: LoadParameters, turn: LoadTurn) -> None:
        if self._calls is None:
            self._calls = CallsOfModels(self.find, self.is_ready, self._load_for_model, self._unload_for_model)
        description = await self._read(name, parameters)
        for version in description.versions:
            if (name, str(version)) not in self._served:
                self._states.set(name, str(version), LOADING)
        try:
            prepared = await self._turns.prepare(
                turn, lambda: self._prepare(description), discard_all, description.versions
            )
        except LoadAbandoned:
            self._states.load_abandoned(name)
            raise
        except Exception as error:
            known = reportable(error)
            self.note_failure(name, tuple(description.versions), known)
            raise known.within(_LOAD_FAILED.format(name)) from error
        if self._closing:
            await in_thread(lambda: discard_all(prepared))
            raise Unavailable("the server is stopping")
        steps = step_names(description.config)
        records = self._dependents.records
        try:
            # In the same turn of the loop as the change: the steps cannot change in between.
            checked = self._dependents.check(description, prepared) if steps else []
            served = serve_all(prepared, self._start)
        except IsochroneError as error:
            await in_thread(lambda: discard_all(prepared))
            self.note_failure(name, tuple(description.versions), error)
            if steps and not self.versions(name):
                records.wait(name, steps, parameters)
            raise error.within(_LOAD_FAILED.format(name)) from error
        self._publish(description, served)
        if steps:
            records.serve(name, steps, parameters)
            for each in self.versions(name):
                each.checked_steps = checked

    async def _read(self, name: str, parameters: LoadParameters) -> ModelDescription:
        config, files, versions = parameters.config, parameters.files, parameters.versions
        fetching = self._states.fetching(name, [str(version) for version in versions or ()])
        loop = asyncio.get_running_loop()

        def report(text: str) -> None:
            loop.call_soon_threadsafe(fetching.show, text)

        try:
            description = await in_thread(lambda: self.repository.read(name, config, files, versions, report))
        except Exception as error:
            known = reportable(error)
            if not isinstance(known, NotFound):
                self.note_failure(name, (), known)
            context = _LOAD_FAILED if isinstance(known, NoVersion) else _NOT_FOUND_TO_LOAD
            raise known.within(context.format(name)) from error
        finally:
            fetching.end()
        for sentence in description.assumed:
            log.debug("assumed", model=name, what=sentence)
        if description.assumed:
            log.info("configuration completed; --log-verbose 1 says how", model=name, assumed=len(description.assumed))
        if description.ignored:
            log.warning("ignored directories that look like versions", model=name, ignored=list(description.ignored))
        if not description.versions:
            empty = InvalidArgument(f"model '{name}' has no version directory to serve in {description.directory}")
            self.note_failure(name, (), empty)
            raise empty.within(_NOT_FOUND_TO_LOAD.format(name))
        return description

    def lock(self, name: str) -> asyncio.Lock:
        """Held while the served versions of a model change."""
        return self._locks.setdefault(name, asyncio.Lock())

    def withdraw(self, name: str, reason: str = "") -> list[asyncio.Task[None]]:
        """Hides all versions of a model from requests; each task ends when its version is freed."""
        reason = f"{UNLOADED}: {reason}" if reason else UNLOADED
        self._served.pop((name, ""), None)
        tasks = []
        for served in self.versions(name):
            del self._served[(name, served.model_version)]
            self._states.set(name, served.model_version, UNLOADING, reason)
            tasks.append(self._drains.start(served))
        return tasks

    def _prepare(self, description: ModelDescription) -> list[Prepared]:
        """On a thread."""

        def served_digest(version: int) -> str | None:
            current = self._served.get((description.name, str(version)))
            return None if current is None else current.digest

        return prepare_changed(description, served_digest, self._digests, self._loading, self._calls)

    def _start(self, prepared: Prepared) -> ServedVersion:
        served = serve(prepared, self.find, self.watchdog, self.stage, self._resources)
        if prepared.description.config.response_cache.enable and not served.decoupled:
            served.cache = self._cache
        return served

    def _publish(self, description: ModelDescription, made: list[ServedVersion]) -> None:
        """Switches requests to the new versions: one turn of the loop, no await."""
        name = description.name
        replaced: list[ServedVersion] = []
        for served in made:
            if self.on_served is not None:
                self.on_served(served)
            key = (name, served.model_version)
            if key in self._served:
                replaced.append(self._served[key])
            self._served[key] = served
        current = self.versions(name)
        versions = [str(version) for version in description.versions]
        self._states.published(name, versions, [served.model_version for served in current])
        for served in current:
            if served.number not in description.versions:
                del self._served[(name, served.model_version)]
                self._states.set(name, served.model_version, UNLOADING)
                replaced.append(served)
        self._provenance.update(((name, str(each)), found) for each, found in description.provenance.items())
        self._served[(name, "")] = self.versions(name)[-1]
        for served in replaced:
            self._drains.start(served)
        if made:
            log.info("model ready", model=name, versions=[served.number for served in made])

    # What models ask for.

    async def _load_for_model(self, name: str, parameters: Mapping[str, Any]) -> None:
        self._check_models_may_load()
        await self.load(name, parameters)

    async def _unload_for_model(self, name: str, dependents: bool) -> None:
        self._check_models_may_load()
        await self.unload(name, dependents=dependents)

    def _check_models_may_load(self) -> None:
        if self._loading.sandbox is not None:
            raise Unavailable("a model in a sandbox may not load or unload models; the server runs with --sandbox")
        if not self._loading.models_may_load:
            raise Unavailable(
                "explicit model load / unload is not allowed if polling is enabled or control is off; "
                "start the server with --model-control-mode=explicit"
            )

    # Unload.

    def note_failure(self, name: str, versions: tuple[int, ...], error: IsochroneError) -> None:
        """Logs a failed load and keeps its reason for the index until a load succeeds."""
        log.error("model failed to load", model=name, error=str(error))
        serving = self.versions(name)
        for served in serving:
            # It keeps serving; the index says why it is not the version in the repository.
            self._states.set(name, served.model_version, READY, f"the last load failed: {error}")
        for version in versions or (() if serving else ("",)):
            if (name, str(version)) not in self._served:
                self._states.set(name, str(version), UNAVAILABLE, str(error))

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        """Stops serving a model; returns when its requests are done and its memory is free.

        As in Triton, unloading an unknown model is not an error. ``dependents`` also unloads the models of its steps
        that were not loaded by name and that no other ensemble runs.
        """
        if not self._known(name):
            validate_model_name(name)
            return
        turn = self._turns.enter(name, (), self._turns.arrive())
        try:
            steps = await self._unload(name)
        finally:
            self._turns.leave(turn)
        if dependents:
            for step in steps:
                # Also an ensemble that waits for its steps.
                if self._known(step) and not self._dependents.records.is_needed(step):
                    await self.unload(step, dependents=True)

    async def _unload(self, name: str) -> tuple[str, ...]:
        """Unloads one model; returns the models of its steps."""
        async with self.lock(name):
            numbers = [served.number for served in self.versions(name)]
            tasks = self.withdraw(name)
            steps = self._dependents.records.steps(name)
            self._dependents.records.forget(name)
            await self._dependents.recheck(name)
            if tasks:
                await asyncio.gather(*tasks)
                log.info("model unloaded", model=name, versions=numbers)
        return steps

    def forget(self, name: str) -> None:
        """The repository has this model no more: unless versions are served, the index need not show it."""
        if not self.versions(name):
            self._states.forget(name)

    def check_stuck(self) -> None:
        now = now_ns()
        self.watchdog.was_preempted()
        for served in [*self.all_versions(), *self._drains.versions]:
            served.runner.check_stuck(now)

    async def close(self, seconds: float) -> None:
        """Drains and frees every version."""
        self._closing = True
        versions = self.all_versions()
        self._served.clear()
        await self._drains.close(versions, seconds)
        await self._turns.close()
