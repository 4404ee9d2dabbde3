"""Records of ensembles: the models that were loaded by name, and the ensembles that wait for their steps.

An ensemble whose step is missing waits: it is loaded again when a model of its steps is. A model that was loaded only
because an ensemble runs it can be unloaded with that ensemble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isochrone.worker.catalog.load_parameters import LoadParameters


@dataclass(slots=True)
class _Ensemble:
    steps: tuple[str, ...]
    #: The parameters of its last load.
    parameters: LoadParameters
    waits: bool = False


class EnsembleRecords:
    """The records of one catalog."""

    def __init__(self) -> None:
        #: Models that were loaded by name.
        self._by_name: set[str] = set()
        #: Models that were loaded with parameters.
        self._customised: set[str] = set()
        #: Ensembles that serve or wait.
        self._ensembles: dict[str, _Ensemble] = {}

    def loaded_by_name(self, name: str, parameters: LoadParameters) -> None:
        self._by_name.add(name)
        if parameters == LoadParameters():
            self._customised.discard(name)
        else:
            self._customised.add(name)

    def is_customised(self, name: str) -> bool:
        """Whether a model was loaded with versions, a configuration or files: loading an ensemble keeps those."""
        return name in self._customised

    def forget(self, name: str) -> None:
        """The model was unloaded."""
        self._by_name.discard(name)
        self._customised.discard(name)
        self._ensembles.pop(name, None)

    def serve(self, name: str, steps: Sequence[str], parameters: LoadParameters) -> None:
        """Records an ensemble that is served."""
        self._ensembles[name] = _Ensemble(tuple(steps), parameters)

    def wait(self, name: str, steps: Sequence[str], parameters: LoadParameters) -> None:
        """Records an ensemble whose steps are missing or do not fit."""
        self._ensembles[name] = _Ensemble(tuple(steps), parameters, waits=True)

    def suspend(self, name: str) -> None:
        """A served ensemble lost a step: it waits."""
        self._ensembles[name].waits = True

    def running(self, step: str) -> list[str]:
        """Served ensembles that run this model."""
        return [name for name, each in self._ensembles.items() if not each.waits and step in each.steps]

    def waiting(self, step: str) -> list[tuple[str, LoadParameters]]:
        """Waiting ensembles that run this model, with the parameters of their last load."""
        return [(name, each.parameters) for name, each in self._ensembles.items() if each.waits and step in each.steps]

    def steps(self, name: str) -> tuple[str, ...]:
        return self._ensembles[name].steps if name in self._ensembles else ()

    def is_needed(self, name: str) -> bool:
        """Whether a model was loaded by name, or an ensemble runs it."""
        return name in self._by_name or any(name in each.steps for each in self._ensembles.values())
