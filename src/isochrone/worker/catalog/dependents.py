"""Ensembles whose steps come, change or go: checked, withdrawn, brought back.

Between the catalog, which changes what is served and then calls here, and the pure rules in ``dependencies``. All on
the loop's thread. Nothing here takes the lock of a model while it holds that of an ensemble that runs it: an unload
takes them the other way round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import structlog

from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.worker.catalog.dependencies import check, still_served
from isochrone.worker.catalog.loading import Prepared, prepare
from isochrone.worker.catalog.standing import Standing

if TYPE_CHECKING:
    from isochrone.models.repository.repository import ModelDescription
    from isochrone.worker.catalog.load_parameters import LoadParameters
    from isochrone.worker.served_version import ServedVersion

log = structlog.get_logger()


class Models(Protocol):
    """What is asked of the catalog."""

    served: Callable[[tuple[str, str]], ServedVersion | None]

    def versions(self, name: str) -> list[ServedVersion]: ...

    def failure(self, name: str) -> str | None: ...

    def lock(self, name: str) -> asyncio.Lock: ...

    def withdraw(self, name: str, reason: str) -> object: ...

    async def load_alone(self, name: str, asked: LoadParameters) -> None: ...


class Dependents:
    """Of one catalog."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self.standing = Standing()

    def check(self, description: ModelDescription, prepared: list[Prepared]) -> list[ServedVersion]:
        """Fits what was prepared of an ensemble to the steps that are served now, and returns those."""
        models = self._models
        config, versions = check(description.config, models.served, models.failure)
        decided = replace(description, config=config)
        decoupled = config.model_transaction_policy.decoupled
        for version in description.versions:
            current = models.served((description.name, str(version)))
            if current is not None and current.decoupled != decoupled:
                # Its own files are as they were, so nothing was prepared for it.
                prepared.append(prepare(decided, version, current.digest))
        prepared[:] = [replace(each, description=decided) for each in prepared]
        return versions

    async def changed(self, name: str) -> None:
        """A model has come, changed or gone: ensembles that run it are checked against what there is now."""
        for ensemble in self.standing.running(name):
            async with self._models.lock(ensemble):
                withdrawn = self._check_again(ensemble)
            if withdrawn:
                await self.changed(ensemble)

    async def bring_back(self, name: str) -> None:
        """A model has come: ensembles that waited for it are loaded, by the parameters of their last load."""
        for ensemble, asked in self.standing.waiting(name):
            try:
                await self._models.load_alone(ensemble, asked)
            except IsochroneError:
                # Noted for the index; it goes on waiting.
                pass

    def _check_again(self, name: str) -> bool:
        """Whether an ensemble was withdrawn, because its steps no longer fit."""
        models = self._models
        versions = models.versions(name)
        if not versions or still_served(versions[-1].checked, models.served):
            return False
        try:
            config, checked = check(versions[-1].description.config, models.served, models.failure)
            decoupled = config.model_transaction_policy.decoupled
            if decoupled != versions[-1].decoupled:
                raise InvalidArgument(f"its steps are {'' if decoupled else 'no longer '}decoupled now")
        except InvalidArgument as error:
            log.warning("ensemble withdrawn: its steps changed", model=name, error=str(error))
            self.standing.suspend(name)
            models.withdraw(name, str(error))
            return True
        for served in versions:
            served.checked = checked
        return False
