"""Refuses calls that would wait for themselves: models that call each other in a cycle, or too deeply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from isochrone.errors import IsochroneError
from isochrone.models.instances import configured_instances
from isochrone.worker.backends.python.triton.failures import TritonModelException

if TYPE_CHECKING:
    from isochrone.worker.served_version import ServedVersion

Find = Callable[[str, str], "ServedVersion"]
#: The versions (model, version) that wait for each other; the last one is called now.
Chain = tuple[tuple[str, str], ...]

#: Calls of which each waits for the next.
_LONGEST_CHAIN = 32


def check_cycle(chain: Chain, served: ServedVersion, find: Find) -> None:
    """Refuses a call for which a version that it needs can have no instance left: all of them wait for this call."""
    if len(chain) > _LONGEST_CHAIN:
        raise _cycle(served.model_name, (*chain[:3], ("…", "")))
    waiting = chain[:-1]
    for needed in _needed(served, find):
        key = (needed.model_name, needed.model_version)
        if waiting.count(key) >= _instances(needed):
            raise _cycle(needed.model_name, chain if needed is served else (*chain, key))


def _needed(served: ServedVersion, find: Find, depth: int = 0) -> Iterator[ServedVersion]:
    """The versions that run for a call: the called one, or the steps of an ensemble."""
    config: Any = served.description.config
    if not config.HasField("ensemble_scheduling"):
        yield served
        return
    for step in config.ensemble_scheduling.step:
        try:
            found = find(step.model_name, "" if step.model_version < 0 else str(step.model_version))
        except IsochroneError:
            continue  # the run of the step fails, and says why
        if depth < _LONGEST_CHAIN:
            yield from _needed(found, find, depth + 1)


def _instances(served: ServedVersion) -> float:
    """How many runs of a version can wait at once."""
    instances = getattr(served.runner, "instances", ())
    if served.decoupled and instances and instances[0].executable.is_async:
        return float("inf")  # the instance is free while its coroutines wait
    return len(configured_instances(served.description.config)) or 1


def _cycle(name: str, chain: Chain) -> TritonModelException:
    names = " → ".join(model for model, _ in chain)
    return TritonModelException(
        f"Model '{name}' cannot be called in a cycle ({names}): all of its instances wait for this call. Break the"
        " cycle, or give the model more instances than calls of it that wait for each other."
    )
