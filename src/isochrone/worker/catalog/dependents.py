"""Ensembles that depend on a model: check, withdraw or reload them when the model changes.

The catalog calls this after each change; ``dependencies`` has the pure rules. Runs on the loop's thread. Nothing here
takes the lock of a model while it holds the lock of an ensemble that runs the model: an unload takes them in the other
order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import structlog

from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.models.configuration.divided_models import is_divided
from isochrone.worker.catalog.dependencies import check, still_served
from isochrone.worker.catalog.ensemble_records import EnsembleRecords
from isochrone.worker.catalog.loading import Prepared, prepare

if TYPE_CHECKING:
    from isochrone.models.repository.description import ModelDescription
    from isochrone.worker.catalog.load_parameters import LoadParameters
    from isochrone.worker.served_version import ServedVersion

log = structlog.get_logger(__name__)


class Models(Protocol):
    """The interface of the catalog."""

    served: Callable[[tuple[str, str]], ServedVersion | None]

    def versions(self, name: str) -> list[ServedVersion]: ...

    def failure(self, name: str) -> str | None: ...

    def lock(self, name: str) -> asyncio.Lock: ...

    def withdraw(self, name: str, reason: str) -> object: ...

    async def load_alone(self, name: str, parameters: LoadParameters) -> None: ...


class Dependents:
    """The ensembles of one catalog."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self.records = EnsembleRecords()

    def check(self, description: ModelDescription, prepared: list[Prepared]) -> list[ServedVersion]:
        """Adapts the prepared versions of an ensemble to the steps that are served now; returns those steps."""
        models = self._models
        config, versions = check(description.config, models.served, models.failure)
        decided = replace(description, config=config)
        decoupled = config.model_transaction_policy.decoupled
        for version in description.versions:
            current = models.served((description.name, str(version)))
            if current is not None and current.decoupled != decoupled:
                # Its files have not changed, so it was not prepared.
                prepared.append(prepare(decided, version, current.digest))
        prepared[:] = [replace(each, description=decided) for each in prepared]
        return versions

    async def recheck(self, name: str) -> None:
        """A model changed: checks the ensembles that run it, and withdraws those that no longer fit."""
        for ensemble in self.records.running(name):
            async with self._models.lock(ensemble):
                withdrawn = self._check_again(ensemble)
            if withdrawn:
                await self.recheck(ensemble)

    async def reload_waiting(self, name: str) -> None:
        """A model was loaded: loads the ensembles that wait for it, with the parameters of their last load."""
        for ensemble, parameters in self.records.waiting(name):
            try:
                await self._models.load_alone(ensemble, parameters)
            except IsochroneError:
                # The index has the reason; the ensemble keeps waiting.
                pass

    def _check_again(self, name: str) -> bool:
        """Withdraws an ensemble whose steps no longer fit; returns whether it did."""
        models = self._models
        versions = models.versions(name)
        if not versions:
            return False
        # A division that was missing may have been loaded.
        divided = is_divided(versions[-1].description.config)
        if not divided and still_served(versions[-1].checked_steps, models.served):
            return False
        try:
            config, checked = check(versions[-1].description.config, models.served, models.failure)
            decoupled = config.model_transaction_policy.decoupled
            if decoupled != versions[-1].decoupled:
                raise InvalidArgument(f"its steps are {'' if decoupled else 'no longer '}decoupled now")
        except InvalidArgument as error:
            log.warning("ensemble withdrawn: its steps changed", model=name, error=str(error))
            self.records.suspend(name)
            models.withdraw(name, str(error))
            return True
        for served in versions:
            served.checked_steps = checked
        return False
