"""The calls to Ray that the engine makes: actors by name, placement groups, nodes.

Ray's calls block, for up to a minute if its head does not answer; each runs on a thread, so that the supervisor goes
on. Must never decide anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.needs import Needs
from isochrone.engines.ray.actor import HostedProcess
from isochrone.engines.ray.connecting import NAMESPACE
from isochrone.engines.ray.nodes import Node, read_nodes
from isochrone.engines.ray.placement import actor_options, group_of
from isochrone.engines.ray.reports import encode_spec

#: Calls that an actor answers at the same time: a report, a stop, lines of the log.
_CALLS_AT_ONCE = 8


class RayCluster:
    """The part of a connected cluster that belongs to one fleet."""

    def __init__(self, fleet: str, environment: Mapping[str, str]) -> None:
        self._fleet = fleet
        self._prefix = f"isochrone/{fleet}/"
        self._environment = dict(environment)

    async def create(self, spec: ProcessSpec, avoided: Collection[str] = ()) -> Any:
        """An actor for a process. Ray places it when it can."""
        return await asyncio.to_thread(self._create, spec, avoided)

    async def find(self) -> dict[str, Any]:
        """The actors that exist, by the name of their process."""
        return await asyncio.to_thread(self._find)

    async def kill(self, actor: Any) -> None:
        """End an actor for good. Its name is free at once, even if its node does not answer."""
        import ray

        await asyncio.to_thread(ray.kill, actor, no_restart=True)

    async def nodes(self) -> list[Node]:
        import ray

        return await asyncio.to_thread(lambda: read_nodes(ray.nodes()))

    async def remove_groups(self, used: Collection[Needs]) -> None:
        """Remove the placement groups of this fleet that no process uses."""
        names = {group.name for needs in used if (group := group_of(self._fleet, needs)) is not None}
        await asyncio.to_thread(self._remove_groups, names)

    def _create(self, spec: ProcessSpec, avoided: Collection[str]) -> Any:
        import ray

        needs = spec.needs or Needs()
        options = actor_options(needs, avoided)
        if needs.group:
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group(needs), placement_group_bundle_index=needs.share
            )
        made = ray.remote(HostedProcess).options(
            name=self._prefix + spec.name,
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=-1,
            # A call that its actor's death interrupts must fail: the engine has to know.
            max_task_retries=0,
            max_concurrency=_CALLS_AT_ONCE,
            **options,
        )
        return made.remote(self._fleet, encode_spec(spec), self._environment)

    def _group(self, needs: Needs) -> Any:
        from ray.util.placement_group import get_placement_group, placement_group

        group = group_of(self._fleet, needs)
        assert group is not None
        try:
            return get_placement_group(group.name)
        except ValueError:
            selectors = [group.labels] * len(group.bundles) if group.labels else None
            return placement_group(
                list(group.bundles),
                strategy=group.strategy,
                name=group.name,
                lifetime="detached",
                bundle_label_selector=selectors,
            )

    def _find(self) -> dict[str, Any]:
        import ray

        found = {}
        for row in ray.util.list_named_actors(all_namespaces=True):
            if row["namespace"] == NAMESPACE and row["name"].startswith(self._prefix):
                try:
                    found[row["name"].removeprefix(self._prefix)] = ray.get_actor(row["name"], namespace=NAMESPACE)
                except ValueError:
                    pass  # it has ended since
        return found

    def _remove_groups(self, used: Collection[str]) -> None:
        from ray.util.placement_group import get_placement_group, placement_group_table, remove_placement_group

        for row in placement_group_table().values():
            name = row["name"]
            if name.startswith(self._prefix) and name not in used and row["state"] != "REMOVED":
                try:
                    remove_placement_group(get_placement_group(name))
                except ValueError:
                    pass  # another supervisor removed it
