"""Which versions of which models are served, and how that changes: load, unload, poll.

A new version loads and warms beside the old one; then one assignment on the loop's thread makes it visible; then the
old one drains and is freed. A load that fails changes nothing but the reason kept for the index. Requests look models
up in ``find``, a dictionary, and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.clock import now_ns
from isochrone.errors import Internal, InvalidArgument, IsochroneError, NotFound, NoVersion, Unavailable
from isochrone.models.configuration.ensemble_graph import step_names
from isochrone.models.repository.digest import DigestMemory
from isochrone.models.repository.repository import ModelEntry, Repository, validate_model_name
from isochrone.models.repository.versions import version_number
from isochrone.worker.catalog.dependencies import load_order
from isochrone.worker.catalog.dependents import Dependents
from isochrone.worker.catalog.load_parameters import LoadParameters
from isochrone.worker.catalog.load_settings import LoadSettings
from isochrone.worker.catalog.load_turns import GivenUp, LoadTurn, LoadTurns
from isochrone.worker.catalog.loading import Prepared, prepare_again, serve
from isochrone.worker.catalog.off_loop import give_memory_back, in_thread
from isochrone.worker.execution.resource_gate import SharedResources
from isochrone.worker.execution.watchdog import InlineWatchdog
from isochrone.worker.response_cache import ResponseCache

if TYPE_CHECKING:
    from isochrone.models.repository.repository import ModelDescription
    from isochrone.observe.snapshot import CacheSnapshot
    from isochrone.worker.served_version import ServedVersion

log = structlog.get_logger()

#: Triton's words, which its own programs look for: nothing that could be loaded, or a version that does not load.
_NOT_FOUND_TO_LOAD = "failed to load '{}', failed to poll from model repository"
_LOAD_FAILED = "load failed for model '{}'"

READY, LOADING, UNLOADING, UNAVAILABLE = "READY", "LOADING", "UNLOADING", "UNAVAILABLE"
#: The reason of what was taken away, alone or before what it was for.
UNLOADED = "unloaded"


class Catalog:
    """All on the loop's thread, but for the work it sends to threads."""

    def __init__(
        self,
        repository: Repository,
        cache: ResponseCache | None,
        drain_seconds: float,
        loading: LoadSettings | None = None,
    ) -> None:
        self.repository = repository
        self.watchdog = InlineWatchdog()
        self._cache = cache
        self._drain_seconds = drain_seconds
        self._loading = loading or LoadSettings()
        limits = self._loading.rate_limits
        self._resources = None if limits is None else SharedResources(limits)
        #: (name, version) → what serves it; version "" is the newest. The one place requests look.
        self._served: dict[tuple[str, str], ServedVersion] = {}
        #: The hot path's look-up, bound once; ``find`` explains a miss.
        self.served: Callable[[tuple[str, str]], ServedVersion | None] = self._served.get
        #: (name, version) → (state, reason), for the index. Outlives what it describes.
        self._states: dict[tuple[str, str], tuple[str, str]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._turns = LoadTurns()
        self._entries: dict[str, ModelEntry] = {}
        #: Versions that finish their last requests: no longer found, still looked after.
        self._leaving: set[ServedVersion] = set()
        self._retiring = BackgroundTasks()
        self._digests = DigestMemory()
        self._dependents = Dependents(self)
        self._closing = False

    # Looking up.

    def find(self, name: str, version: str) -> ServedVersion:
        """The version that serves a request; ``version`` "" means the newest."""
        served = self._served.get((name, version))
        if served is None:
            raise self._absent(name, version)
        return served

    def _absent(self, name: str, version: str) -> IsochroneError:
        if not self._known(name):
            return self.repository.unknown(name)
        if version and version_number(version) is None:
            return _no_number(version)
        states = {key[1]: state for key, state in self._states.items() if key[0] == name}
        if version and version not in states:
            return NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        state, reason = states.get(version, (UNAVAILABLE, "")) if version else _best(states)
        detail = f" ({reason})" if reason else ""
        if version:
            return Unavailable(f"Request for unknown model: '{name}' version {version} is not at ready state{detail}")
        if state == LOADING:
            return Unavailable(f"Request for unknown model: '{name}' is not at ready state: it is loading")
        return Unavailable(f"Request for unknown model: '{name}' has no available versions{detail}")

    def _known(self, name: str) -> bool:
        return any(key[0] == name for key in self._states) or name in self._entries

    def versions(self, name: str) -> list[ServedVersion]:
        found = [served for (model, version), served in self._served.items() if model == name and version]
        return sorted(found, key=lambda served: served.number)

    def all_versions(self) -> list[ServedVersion]:
        found = [served for (_, version), served in self._served.items() if version]
        return sorted(found, key=lambda served: (served.model_name, served.number))

    def is_ready(self, name: str, version: str) -> bool:
        if version and version_number(version) is None:
            raise _no_number(version)
        return (name, version) in self._served

    def index(self) -> list[tuple[str, str, str, str]]:
        """(name, version, state, reason) of everything known."""
        rows = [(name, version, state, reason) for (name, version), (state, reason) in self._states.items()]
        listed = {row[0] for row in rows}
        rows += [(name, "", "", "") for name in self._entries if name not in listed]
        return sorted(rows, key=lambda row: (row[0], version_number(row[1]) or 0))

    def cache_snapshot(self) -> CacheSnapshot | None:
        """What the response cache holds; None: there is none."""
        return None if self._cache is None else self._cache.snapshot()

    # Changing.

    async def scan(self) -> dict[str, ModelEntry]:
        """Looks at the repository; remembers the names."""
        self._entries = await in_thread(self.repository.scan)
        return self._entries

    async def load(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Makes what is served of a model what the repository says. Returns when it is ready."""
        failed = await self.load_all({name: LoadParameters.read(parameters or {})})
        if name in failed:
            raise failed[name]

    async def load_all(self, wanted: Mapping[str, LoadParameters]) -> dict[str, IsochroneError]:
        """Loads models, and before ensembles those of their steps; says which failed, and why."""
        arrived = self._turns.arrive()
        for name in wanted:
            # Before anything remembers the name: it may be a stranger's, and no model's.
            validate_model_name(name)

        def steps(name: str) -> tuple[str, ...]:
            return self.repository.steps(name, wanted[name].config if name in wanted else None)

        order, circular = await in_thread(lambda: load_order(wanted, steps))
        gate, standing = asyncio.Semaphore(self._loading.threads), self._dependents.standing
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
                if name in wanted or not self.versions(name) or not standing.is_particular(name):
                    async with gate:
                        await self.load_alone(name, wanted.get(name) or LoadParameters(), arrived)
            except IsochroneError as error:
                failed[name] = error
            if name in wanted and self._known(name):
                standing.ask(name, wanted[name])

        for name in order:
            tasks[name] = asyncio.ensure_future(load(name))
        await asyncio.gather(*tasks.values())
        return failed

    async def load_alone(self, name: str, asked: LoadParameters, arrived: int = 0) -> None:
        """Loads one model; then looks after the ensembles that run it. ``arrived``: the call's number; 0: it is new."""
        # The name of a step may be anything.
        validate_model_name(name)
        lock = self.lock(name)
        turn = self._turns.enter(name, asked.versions, arrived or self._turns.arrive())
        try:
            async with lock:
                if self._closing:
                    raise Unavailable("the server is stopping")
                turn.check()
                await self._load(name, asked, turn)
        finally:
            self._turns.leave(turn)
            if not self._known(name) and not lock.locked():
                self._locks.pop(name, None)
        await self._dependents.changed(name)
        await self._dependents.bring_back(name)

    async def _load(self, name: str, asked: LoadParameters, turn: LoadTurn) -> None:
        try:
            description = await in_thread(lambda: self.repository.read(name, asked.config, asked.files, asked.versions))
        except IsochroneError as error:
            if not isinstance(error, NotFound):
                self.note_failure(name, (), error)
            context = _LOAD_FAILED if isinstance(error, NoVersion) else _NOT_FOUND_TO_LOAD
            raise error.within(context.format(name)) from error
        for sentence in description.assumed:
            log.debug("assumed", model=name, what=sentence)
        if description.assumed:
            log.info("configuration completed; --log-verbose 1 says how", model=name, assumed=len(description.assumed))
        if not description.versions:
            empty = InvalidArgument(f"model '{name}' has no version directory to serve in {description.directory}")
            self.note_failure(name, (), empty)
            raise empty.within(_NOT_FOUND_TO_LOAD.format(name))
        for version in description.versions:
            if (name, str(version)) not in self._served:
                self._states[(name, str(version))] = (LOADING, "")
        try:
            prepared = await self._turns.prepare(
                turn, lambda: self._prepare(description), _discard, description.versions
            )
        except GivenUp:
            self._forget_loading(name)
            raise
        except Exception as error:
            known = error if isinstance(error, IsochroneError) else Internal(f"{type(error).__name__}: {error}")
            self.note_failure(name, tuple(description.versions), known)
            raise known.within(_LOAD_FAILED.format(name)) from error
        if self._closing:
            await in_thread(lambda: _discard(prepared))
            raise Unavailable("the server is stopping")
        steps = step_names(description.config)
        try:
            # In the same turn of the loop as the change: what it is checked against is what is served then.
            checked = self._dependents.check(description, prepared) if steps else []
            served = self._serve(prepared)
        except IsochroneError as error:
            await in_thread(lambda: _discard(prepared))
            self.note_failure(name, tuple(description.versions), error)
            if steps and not self.versions(name):
                self._dependents.standing.wait(name, steps, asked)
            raise error.within(_LOAD_FAILED.format(name)) from error
        self._publish(description, served)
        if steps:
            self._dependents.standing.serve(name, steps, asked)
            for each in self.versions(name):
                each.checked = checked

    def _forget_loading(self, name: str) -> None:
        for key in [key for key, (state, _) in self._states.items() if key[0] == name and state == LOADING]:
            self._states[key] = (UNAVAILABLE, f"{UNLOADED}: given up while it was loading")

    def failure(self, name: str) -> str | None:
        """Why no version of a model serves, where its load failed."""
        for (model, _), (state, reason) in self._states.items():
            if model == name and state == UNAVAILABLE and not is_unloaded(reason):
                return reason
        return None

    def lock(self, name: str) -> asyncio.Lock:
        """Held while what is served of a model changes."""
        return self._locks.setdefault(name, asyncio.Lock())

    def withdraw(self, name: str, reason: str = "") -> list[asyncio.Task[None]]:
        """Takes all versions of a model away from requests; the tasks end when each is free."""
        reason = f"{UNLOADED}: {reason}" if reason else UNLOADED
        self._served.pop((name, ""), None)
        tasks = []
        for served in self.versions(name):
            del self._served[(name, served.model_version)]
            self._states[(name, served.model_version)] = (UNLOADING, reason)
            tasks.append(self._retire(served))
        return tasks

    def _prepare(self, description: ModelDescription) -> list[Prepared]:
        """On a thread: loads every version that is new or differs; those that stay as they are are not touched."""
        prepared: list[Prepared] = []
        try:
            for version, directory in description.versions.items():
                own = description.of_version(version)
                digest = self._digests.digest(own.config, directory)
                current = self._served.get((description.name, str(version)))
                if current is not None and current.digest == digest:
                    continue
                prepared.append(prepare_again(own, version, digest, self._loading))
        except BaseException:
            _discard(prepared)
            raise
        return prepared

    def _serve(self, prepared: list[Prepared]) -> list[ServedVersion]:
        """Gives prepared versions their queues and threads; all or none."""
        made: list[ServedVersion] = []
        try:
            for each in prepared:
                served = serve(each, self.find, self.watchdog, self._resources)
                made.append(served)
                if each.description.config.response_cache.enable and not served.decoupled:
                    served.cache = self._cache
        except BaseException as error:
            for served in made:
                served.runner.release()
            if isinstance(error, Exception) and not isinstance(error, IsochroneError):
                raise Internal(f"{type(error).__name__}: {error}") from error
            raise
        return made

    def _publish(self, description: ModelDescription, made: list[ServedVersion]) -> None:
        """The moment of change: one turn of the loop, no await."""
        name = description.name
        retired: list[ServedVersion] = []
        for served in made:
            key = (name, served.model_version)
            if key in self._served:
                retired.append(self._served[key])
            self._served[key] = served
        for version in description.versions:
            # Those that stayed as they are too: a failure of an earlier load is no longer what is to be told.
            self._states[(name, str(version))] = (READY, "")
        for key, (state, reason) in list(self._states.items()):
            # A version that failed before and is not asked for any more is nobody's trouble.
            if key[0] == name and state == UNAVAILABLE and not is_unloaded(reason) and key not in self._served:
                del self._states[key]
        for served in self.versions(name):
            if served.number not in description.versions:
                del self._served[(name, served.model_version)]
                self._states[(name, served.model_version)] = (UNLOADING, "")
                retired.append(served)
        self._served[(name, "")] = self.versions(name)[-1]
        self._states.pop((name, ""), None)
        for served in retired:
            self._retire(served)
        if made:
            log.info("model ready", model=name, versions=[served.number for served in made])

    def _retire(self, served: ServedVersion) -> asyncio.Task[None]:
        return self._retiring.start(self._drain_and_free(served))

    async def _drain_and_free(self, served: ServedVersion) -> None:
        self._leaving.add(served)
        if not await served.drain(self._drain_seconds):
            log.warning(
                "requests outlasted the drain time and were failed",
                model=served.model_name,
                version=served.model_version,
                requests=served.in_flight,
            )
            served.runner.fail_all()
        served.runner.release()
        try:
            await in_thread(served.runner.close)
        except Exception as error:
            log.error(
                "freeing a version failed", model=served.model_name, version=served.model_version, error=str(error)
            )
        if self._cache is not None:
            self._cache.forget(served.model_name, served.model_version)
        key = (served.model_name, served.model_version)
        if key not in self._served:
            state, reason = self._states.get(key, (UNAVAILABLE, ""))
            self._states[key] = (UNAVAILABLE, reason if state == UNLOADING and reason else UNLOADED)
        self._leaving.discard(served)
        # A version that was replaced leaves its memory to its successor; a full collection holds the interpreter for
        # some 10 ms, so it is kept for an unload, which promises free memory. At the server's own end it is no use.
        unloaded = not self._closing and (served.model_name, "") not in self._served
        del served
        if unloaded:
            await in_thread(give_memory_back)

    def note_failure(self, name: str, versions: tuple[int, ...], error: IsochroneError) -> None:
        """A load failed: the log says so once, the index until it succeeds."""
        log.error("model failed to load", model=name, error=str(error))
        serving = self.versions(name)
        for served in serving:
            # What serves goes on serving; the index says why it is not what the repository holds.
            self._states[(name, served.model_version)] = (READY, f"the last load failed: {error}")
        for version in versions or (() if serving else ("",)):
            key = (name, str(version))
            if key not in self._served:
                self._states[key] = (UNAVAILABLE, str(error))

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        """Stops serving a model; returns when its requests are done and its memory is free.

        One that nobody knows is not served, which is all that was asked for: no error, as in Triton.
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
                # Also an ensemble that is not served now, but waits.
                if self._known(step) and not self._dependents.standing.is_needed(step):
                    await self.unload(step, dependents=True)

    async def _unload(self, name: str) -> tuple[str, ...]:
        """Takes a model away when it is its turn; returns the steps that it ran."""
        async with self.lock(name):
            numbers = [served.number for served in self.versions(name)]
            tasks = self.withdraw(name)
            steps = self._dependents.standing.steps(name)
            self._dependents.standing.forget(name)
            await self._dependents.changed(name)
            if tasks:
                await asyncio.gather(*tasks)
                log.info("model unloaded", model=name, versions=numbers)
        return steps

    async def poll(self) -> None:
        """Brings what is served in line with the repository's files."""
        before = self._entries
        try:
            now = await self.scan()
        except IsochroneError as error:
            log.warning("the model repository cannot be read; what is served stays", error=str(error))
            return
        changes = [self._follow_removal(name) for name in before.keys() - now.keys()]
        changes += [self._follow(name, entry) for name, entry in now.items() if entry != before.get(name)]
        # At once: a model that takes long to load or to drain does not hold up the others.
        for problem in await asyncio.gather(*changes, return_exceptions=True):
            if problem is not None:
                log.error("following a change of the repository failed", exc_info=problem)

    async def _follow_removal(self, name: str) -> None:
        await self.unload(name)
        if not self.versions(name):
            for key in [key for key in self._states if key[0] == name]:
                del self._states[key]

    async def _follow(self, name: str, entry: ModelEntry) -> None:
        if entry.problem is not None:
            self.note_failure(name, (), entry.problem)
            return
        try:
            await self.load(name)
        except IsochroneError:
            # Noted for the index and the log; tried again when the files change.
            pass

    def check_stuck(self) -> None:
        now = now_ns()
        for served in [*self.all_versions(), *self._leaving]:
            served.runner.check_stuck(now)

    async def close(self, seconds: float) -> None:
        """Drains and frees everything."""
        self._drain_seconds = seconds
        self._closing = True
        versions = self.all_versions()
        self._served.clear()
        await asyncio.gather(*(self._retire(served) for served in versions))
        await self._retiring.finish()
        await self._turns.close()


def _no_number(version: str) -> InvalidArgument:
    return InvalidArgument(f"model version: expected a positive integer, given '{version[:50]}'")


def _best(states: dict[str, tuple[str, str]]) -> tuple[str, str]:
    """The state that says most about a model none of whose versions serves."""
    for wanted in (LOADING, UNLOADING, UNAVAILABLE):
        for state, reason in states.values():
            if state == wanted:
                return state, reason
    return UNAVAILABLE, ""


def is_unloaded(reason: str) -> bool:
    """Whether a state's reason says that a version was taken away on purpose: not a failure."""
    return reason.startswith(UNLOADED)


def _discard(prepared: list[Prepared]) -> None:
    for each in prepared:
        each.discard()
