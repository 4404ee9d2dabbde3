"""Poll mode: the served models follow the files of the repository, from one scan to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import structlog

from isochrone.errors import IsochroneError
from isochrone.models.repository.description import ModelEntry

log = structlog.get_logger(__name__)


class PolledModels(Protocol):
    """The interface of the catalog."""

    #: As the last scan found them, by name.
    entries: Mapping[str, ModelEntry]

    async def scan(self) -> Mapping[str, ModelEntry]: ...

    async def load(self, name: str) -> None: ...

    async def unload(self, name: str) -> None: ...

    def forget(self, name: str) -> None: ...

    def note_failure(self, name: str, versions: tuple[int, ...], error: IsochroneError) -> None: ...


async def poll(models: PolledModels) -> None:
    """Reconcile the served models with the repository's files."""
    before = models.entries
    try:
        now = await models.scan()
    except IsochroneError as error:
        log.warning("the model repository cannot be read; served models stay", error=str(error))
        return
    changes = [_removed(models, name) for name in before.keys() - now.keys()]
    changes += [_changed(models, name, entry) for name, entry in now.items() if entry != before.get(name)]
    # At the same time: a model that is slow to load or to drain does not delay the others.
    for problem in await asyncio.gather(*changes, return_exceptions=True):
        if problem is not None:
            log.error("a change in the repository could not be applied", exc_info=problem)


async def _removed(models: PolledModels, name: str) -> None:
    await models.unload(name)
    models.forget(name)


async def _changed(models: PolledModels, name: str, entry: ModelEntry) -> None:
    if entry.problem is not None:
        models.note_failure(name, (), entry.problem)
        return
    try:
        await models.load(name)
    except IsochroneError:
        # The index and the log have it; the next change of the files retries.
        pass
