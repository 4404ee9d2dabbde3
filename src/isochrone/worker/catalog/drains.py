"""Versions that no longer serve requests: each drains, then its memory is freed. On the loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.worker.catalog.off_loop import in_thread, release_memory
from isochrone.worker.catalog.states import UNAVAILABLE, UNLOADED, UNLOADING, VersionStates

if TYPE_CHECKING:
    from isochrone.worker.response_cache import ResponseCache
    from isochrone.worker.served_version import ServedVersion

log = structlog.get_logger(__name__)


class Drains:
    """The drains of one catalog. ``served`` is the catalog's look-up."""

    def __init__(
        self,
        served: Callable[[tuple[str, str]], ServedVersion | None],
        states: VersionStates,
        cache: ResponseCache | None,
        seconds: float,
    ) -> None:
        self.versions: set[ServedVersion] = set()
        self._served = served
        self._states = states
        self._cache = cache
        self._seconds = seconds
        self._tasks = BackgroundTasks()
        self._closing = False

    def start(self, version: ServedVersion) -> asyncio.Task[None]:
        """The task ends when the version is freed."""
        return self._tasks.start(self._drain(version))

    async def close(self, versions: list[ServedVersion], seconds: float) -> None:
        """Drains the last versions of a server that stops."""
        self._closing, self._seconds = True, seconds
        await asyncio.gather(*(self.start(version) for version in versions))
        await self._tasks.finish()

    async def _drain(self, version: ServedVersion) -> None:
        name, key = version.model_name, (version.model_name, version.model_version)
        self.versions.add(version)
        if not await version.drain(self._seconds):
            log.warning(
                "requests outlasted the drain time and were failed",
                model=name,
                version=version.model_version,
                requests=version.in_flight,
            )
            version.runner.fail_all()
        version.runner.release()
        try:
            await in_thread(version.runner.close)
        except Exception as error:
            log.error("freeing a version failed", model=name, version=version.model_version, error=str(error))
        if self._cache is not None:
            self._cache.forget(*key)
        if version.activations is not None:
            version.activations.clear()
        if self._served(key) is None:
            state, reason = self._states.get(*key)
            self._states.set(*key, UNAVAILABLE, reason if state == UNLOADING and reason else UNLOADED)
        self.versions.discard(version)
        # Only an unload promises free memory: a full collection holds the interpreter for some 10 ms, and after a
        # replacement the new version uses the memory.
        unloaded = not self._closing and self._served((name, "")) is None
        del version
        if unloaded:
            await in_thread(release_memory)
