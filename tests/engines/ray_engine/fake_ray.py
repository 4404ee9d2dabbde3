"""A cluster of actors in memory, whose failures and delays a test decides: Ray's own races cannot be brought about.

Tests on real clusters are in tests/peers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from ray.exceptions import ActorAlreadyExistsError, ActorDiedError

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.needs import Needs
from isochrone.engines.ray.cluster import RayCluster
from isochrone.engines.ray.nodes import Node
from isochrone.engines.ray.reports import Report, encode_report, encode_spec


class _Method:
    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self.remote = call


class FakeActor:
    """``answers``: whether its node is reachable."""

    def __init__(self, encoded: bytes, *, answers: bool = True, node: str = "node", refusal: str = "") -> None:
        self.encoded = encoded
        self.answers = answers
        self.node = node
        self.refusal = refusal
        self.changed = asyncio.Event()
        self.dead = False
        self.stopped = False
        self.report = _Method(self._report)
        self.spec = _Method(self._spec)
        self.stop = _Method(self._stop)

    def die(self) -> None:
        self.dead = True
        self.changed.set()

    async def _reach(self) -> None:
        if not self.answers:
            await asyncio.Event().wait()
        if self.dead:
            raise ActorDiedError()

    async def _report(self, instance: str, seen: int) -> bytes:
        await self._reach()
        if instance:
            await self.changed.wait()
            await self._reach()
        pid = 0 if self.refusal else 7
        return encode_report(Report(1, "first", self.node, f"{self.node}.local", pid=pid, refusal=self.refusal))

    async def _spec(self) -> bytes:
        await self._reach()
        return self.encoded

    async def _stop(self, grace: float) -> bool:
        await self._reach()
        self.stopped = True
        return True


class FakeCluster(RayCluster):
    def __init__(self) -> None:
        super().__init__("plant", {})
        self.actors: dict[str, FakeActor] = {}
        self.made: list[FakeActor] = []
        #: Held back while a test clears it.
        self.creates = asyncio.Event()
        self.creates.set()
        #: How often Ray fails to end an actor.
        self.failing_kills = 0
        #: Its nodes, and why the memory of a node does not suffice; "": it does.
        self.refusals = {"node": ""}

    async def create(self, spec: ProcessSpec, avoided: Collection[str] = ()) -> Any:
        # As on a thread: whoever waits may be cancelled, the call goes on.
        return await asyncio.shield(asyncio.ensure_future(self._created(spec, avoided)))

    async def _created(self, spec: ProcessSpec, avoided: Collection[str]) -> FakeActor:
        await self.creates.wait()
        if spec.name in self.actors:
            raise ActorAlreadyExistsError(f"The name {spec.name} is already taken.")
        node = next((node for node in self.refusals if node not in avoided), "")
        # Ray finds no node for an actor that may be on none.
        actor = FakeActor(encode_spec(spec), answers=bool(node), node=node, refusal=self.refusals.get(node, ""))
        self.actors[spec.name] = actor
        self.made.append(actor)
        return actor

    async def find(self) -> dict[str, Any]:
        return {name: actor for name, actor in self.actors.items() if not actor.dead}

    async def kill(self, actor: Any) -> None:
        if self.failing_kills:
            self.failing_kills -= 1
            raise RuntimeError("Ray's head does not answer")
        actor.die()
        self.actors = {name: each for name, each in self.actors.items() if each is not actor}

    async def nodes(self) -> list[Node]:
        return [Node(node, f"{node}.local", {"CPU": 8.0, "memory": 64e9}) for node in self.refusals]

    async def remove_groups(self, used: Collection[Needs]) -> None:
        return
