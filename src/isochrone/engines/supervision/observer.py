"""Observes the processes of a fleet: probes them, and remembers what it has seen of each. Changes nothing.

``observation`` and ``signs`` decide what follows from the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from time import monotonic

from isochrone.control.rollout.committed import assigned, has_committed
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import EpochRecord
from isochrone.control.state.view import View
from isochrone.engines.base import Engine, Running
from isochrone.engines.supervision import probes
from isochrone.engines.supervision.fleet_credential import FleetCredential
from isochrone.engines.supervision.fleet_tls import FleetTls
from isochrone.engines.supervision.observation import is_heard_of, observe
from isochrone.engines.supervision.ports import reached_at
from isochrone.engines.supervision.reconcile import STEADY_SECONDS, Observed
from isochrone.engines.supervision.signs import SignsOfLife


class Observer:
    """Of the processes of one supervisor, by name. ``awaited``: the models of an epoch that gateways can serve now."""

    def __init__(self, engine: Engine, view: View, awaited: Callable[[EpochRecord], Sequence[str]]) -> None:
        self._engine = engine
        self._view = view
        self._awaited = awaited
        #: Controller → pid that was seen to answer.
        self._answering: dict[str, int] = {}
        #: Worker or gateway → pid that was seen to serve the committed versions, and since when.
        self._serving: dict[str, tuple[int, float]] = {}
        #: Drained workers without a request in flight.
        self._idle: set[str] = set()
        self._signs = SignsOfLife()
        #: Worker → its last registered host and port, and whether it has TLS.
        self._places: dict[str, tuple[str, int, bool]] = {}
        self._tls = FleetTls()
        self._credential = FleetCredential()

    async def observe(self, drained_since: Mapping[str, float]) -> dict[str, Observed]:
        """The observed state of every process. ``drained_since``: of the workers that the supervisor drains."""
        self._tls.follow(self._view.fleet)
        self._credential.follow(self._view.fleet)
        await self._probe(drained_since)
        lost = await self._find_lost()
        running = self._engine.running()
        now = monotonic()
        serving = {
            name: since for name, (pid, since) in self._serving.items() if name in running and running[name].pid == pid
        }
        behind = {name for name, each in running.items() if each.spec.role != "controller" and name not in serving}
        fresh = {name for name, since in serving.items() if since and now - since < STEADY_SECONDS}
        return observe(self._view, running, drained_since, self._idle, self._answering, behind, fresh, lost)

    def forget(self, name: str) -> None:
        """The process has ended: the next one of its name starts over."""
        self._answering.pop(name, None)
        self._serving.pop(name, None)
        self._signs.forget(name)
        self._idle.discard(name)

    async def _probe(self, drained: Container[str]) -> None:
        """Probe the processes that start or drain."""
        running = self._engine.running()
        # All at once: one that hangs takes the whole time of a probe, and must not delay what the others need.
        await asyncio.gather(*(self._probe_one(name, each, name in drained) for name, each in running.items()))

    async def _probe_one(self, name: str, each: Running, is_drained: bool) -> None:
        workers = self._view.workers
        if each.spec.role == "controller" and each.pid and self._answering.get(name) != each.pid:
            place = reached_at(each.spec, each.host)
            if place is None or await probes.answers(*place):
                self._answering[name] = each.pid
        elif each.spec.role != "controller" and each.pid and self._serving.get(name, (0, 0.0))[0] != each.pid:
            await self._probe_serving(name, each)
        elif is_drained and name in workers:
            record = workers[name]
            credential = self._credential.towards(record.tls)
            if await probes.in_flight(record.host, record.port, record.tls, credential) == 0:
                self._idle.add(name)
            else:
                self._idle.discard(name)

    async def _find_lost(self) -> frozenset[str]:
        """The processes without any sign of life."""
        self._places |= {name: (record.host, record.port, record.tls) for name, record in self._view.workers.items()}
        running = self._engine.running()
        # All at once: each of the processes of a lost machine takes the whole time of a probe.
        lives = await asyncio.gather(*(self._lives(name, each) for name, each in running.items()))
        silent = []
        for name, is_alive in zip(running, lives, strict=True):
            if is_alive:
                self._signs.seen(name, monotonic())
            else:
                silent.append(name)
        return self._signs.lost(silent, monotonic())

    async def _lives(self, name: str, each: Running) -> bool:
        if is_heard_of(name, each, self._view):
            return True
        if each.spec.role != "controller":
            place = self._places.get(name)
            return place is not None and await probes.lives(*place)
        there = reached_at(each.spec, each.host)
        return there is not None and await probes.lives(*there, "--tls-cert" in each.spec.arguments)

    async def gateway_serves(self, gateway: GatewayRecord, models: Sequence[str]) -> bool:
        """Whether a gateway would answer requests for all these models now."""
        running = self._engine.running().get(gateway.name)
        # ``tls: false`` of a gateway: it was started without a certificate for its callers.
        is_plain = running is not None and "--tls-cert" not in running.spec.arguments
        credential = self._credential.towards(gateway.callers_tls, is_plain_by_file=is_plain)
        return await probes.serves_all(gateway.host, gateway.port, models, gateway.callers_tls, credential)

    async def _serves_awaited(self, gateway: GatewayRecord, epoch: EpochRecord) -> bool:
        awaited = self._awaited(epoch)
        # Models of empty pools say nothing about what it has read.
        has_read = len(awaited) == len(epoch.models) or gateway.epoch >= epoch.epoch
        return has_read and await self.gateway_serves(gateway, awaited)

    async def _probe_serving(self, name: str, each: Running) -> None:
        """Probe whether a registered process serves the committed versions: only then may others stop."""
        record = self._view.gateways.get(name) if each.spec.role == "gateway" else self._view.workers.get(name)
        if record is None or self._view.is_unreadable(self._view.keys.epoch):
            return  # what it should serve is not known
        epoch = self._view.epoch or EpochRecord(0)
        if each.spec.role == "gateway":
            models = dict(epoch.models)
            served = isinstance(record, GatewayRecord) and await self._serves_awaited(record, epoch)
        else:
            models = assigned(epoch, each.spec.pool, name, self._view.placements)
            credential = self._credential.towards(record.tls)
            served = not models or has_committed(
                await probes.served(record.host, record.port, record.tls, credential) or {}, models
            )
        if not served:
            return
        # The first processes of a fleet need not wait: no requests are sent yet.
        self._serving[name] = (each.pid, monotonic() if models else 0.0)
