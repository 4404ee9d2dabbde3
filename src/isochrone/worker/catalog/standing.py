"""What the catalog remembers of ensembles: which models were asked for by name, which ensembles wait for which steps.

An ensemble that lost a step, or never found it, waits: it is loaded again when a model of its steps is. A model that
was loaded only because an ensemble runs it goes with that ensemble where an unload asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isochrone.worker.catalog.load_parameters import LoadParameters


@dataclass(slots=True)
class _Ensemble:
    steps: tuple[str, ...]
    #: Of its last load, so that it comes back as it was.
    parameters: LoadParameters
    waits: bool = False


class Standing:
    """Of one catalog; on the loop's thread."""

    def __init__(self) -> None:
        #: Models whose load was asked for by name.
        self._asked: set[str] = set()
        #: Of these, models whose load said more than their names.
        self._particular: set[str] = set()
        #: Every ensemble that serves or waits.
        self._ensembles: dict[str, _Ensemble] = {}

    def ask(self, name: str, parameters: LoadParameters) -> None:
        self._asked.add(name)
        if parameters == LoadParameters():
            self._particular.discard(name)
        else:
            self._particular.add(name)

    def is_particular(self, name: str) -> bool:
        """Whether a model was loaded with versions, a configuration or files of its own: no ensemble changes that."""
        return name in self._particular

    def forget(self, name: str) -> None:
        """It was unloaded: it waits for no step, and keeps no model loaded."""
        self._asked.discard(name)
        self._particular.discard(name)
        self._ensembles.pop(name, None)

    def serve(self, name: str, steps: Sequence[str], parameters: LoadParameters) -> None:
        """An ensemble is served."""
        self._ensembles[name] = _Ensemble(tuple(steps), parameters)

    def wait(self, name: str, steps: Sequence[str], parameters: LoadParameters) -> None:
        """An ensemble cannot be served as its steps are now."""
        self._ensembles[name] = _Ensemble(tuple(steps), parameters, waits=True)

    def suspend(self, name: str) -> None:
        """An ensemble that was served lost a step."""
        self._ensembles[name].waits = True

    def running(self, step: str) -> list[str]:
        """Ensembles that are served and run this model."""
        return [name for name, each in self._ensembles.items() if not each.waits and step in each.steps]

    def waiting(self, step: str) -> list[tuple[str, LoadParameters]]:
        """Ensembles that wait and run this model, with the parameters to load them by."""
        return [(name, each.parameters) for name, each in self._ensembles.items() if each.waits and step in each.steps]

    def steps(self, name: str) -> tuple[str, ...]:
        return self._ensembles[name].steps if name in self._ensembles else ()

    def is_needed(self, name: str) -> bool:
        """Whether a model was asked for by name, or an ensemble runs it."""
        return name in self._asked or any(name in each.steps for each in self._ensembles.values())
