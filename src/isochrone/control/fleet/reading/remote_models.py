"""Remote models of a fleet that another of its models computes: the two change their versions together.

A remote model asks for its own version at its endpoints, unless its configuration names another. A rollout of it alone
would commit a version that no endpoint has, and every request to it would fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from isochrone.control.fleet.reading.catalog import configuration_of
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.errors import InvalidArgument
from isochrone.models.configuration.remote_models import ReachedModel, reached_model
from isochrone.models.repository.listings import Listings


def check_remote_models(
    fleet: Fleet,
    directory: Path,
    before: Mapping[str, str],
    after: Mapping[str, str],
    rollouts: Sequence[Sequence[str]],
    addresses: Set[str],
) -> None:
    """Raise ``InvalidArgument`` for a served remote model that would change without the model that computes it.

    ``before``, ``after``: the committed versions, and those after the change. ``rollouts``: which models change as one.
    ``addresses``: of the fleet's own workers and gateways; what computes a remote model elsewhere is not known here.
    """
    listings = Listings()
    for models in rollouts:
        for name in models:
            if name not in before:
                # Nobody calls a new model before what it needs is there, too.
                continue
            reached = _reached(fleet, name, after[name], directory, listings)
            if reached is None or reached.model == name or not addresses & set(reached.endpoints):
                continue
            there = after.get(reached.model)
            if there is None:
                continue
            needed = reached.version or there
            is_apart = there != before.get(reached.model) and reached.model not in models
            if there == needed and not is_apart:
                continue
            raise InvalidArgument(
                f"models.{name}: {reached.model} version {needed} computes version {after[name]}; expected both in one "
                f"rollout ('{name}={after[name]} {reached.model}={needed}', or in fleet.yaml models.{name}.with: "
                f"[{reached.model}]), given {reached.model} version {there}{' in another rollout' if is_apart else ''}"
            )


def _reached(fleet: Fleet, name: str, version: str, directory: Path, listings: Listings) -> ReachedModel | None:
    config = configuration_of(fleet, name, directory, listings)
    return None if config is None else reached_model(config, version)
