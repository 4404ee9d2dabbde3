"""Runs the processes of a fleet on the nodes of a Ray cluster, each as the child of a detached actor.

One call to each actor is always open: it returns when the state of the process changes, or after a second. So a node
that does not answer is noticed within seconds, long before Ray counts it as dead (12 to 65 s). The engine reports it as
not reachable; ``supervision`` decides, with what the store says, whether to replace the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

import structlog

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.needs import Needs
from isochrone.engines.base import Engine, Exit, Running
from isochrone.engines.ray.asking import answer, spec_of
from isochrone.engines.ray.cluster import RayCluster
from isochrone.engines.ray.kept import SILENCE, KeptProcess, Refusal
from isochrone.engines.ray.nodes import Node, waiting_reason
from isochrone.engines.ray.reports import Report, decode_report

log = structlog.get_logger(__name__)

#: Seconds for an actor to answer a stop, beyond the grace of its process.
_STOP_SECONDS = 5.0
#: Seconds for which no process is started on a node that did not answer (Ray notices within 65 s), nor one on a node
#: that had too little memory for it.
_AVOIDED_SECONDS = 90.0
#: Seconds until a process without a node is looked into, and between two looks at the nodes.
_PATIENCE, _NODES_SECONDS = 3.0, 1.0
#: Seconds between two attempts to reach an actor that Ray is restarting.
_AGAIN_SECONDS = 0.2
#: And to make an actor whose needs Ray rejects.
_REJECTED_SECONDS = 5.0


class RayEngine(Engine):
    """One object per supervisor. ``cluster``: connected already."""

    name = "ray"
    adoptable = True

    def __init__(self, cluster: RayCluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._kept: dict[str, KeptProcess] = {}
        #: By node: until when it is avoided.
        self._avoided: dict[str, float] = {}
        self._looking: asyncio.Task[None] | None = None
        #: Names of actors that did not answer at the start and were ended: their processes may run all the same.
        self._unconfirmed: set[str] = set()

    async def open(self) -> None:
        """Adopt the actors that an earlier supervisor left. One that does not answer is ended: its spec is unknown."""
        actors = await self._cluster.find()
        specs = await asyncio.gather(*(spec_of(name, actor) for name, actor in actors.items()))
        for (name, actor), spec in zip(actors.items(), specs, strict=True):
            if spec is None:
                self._unconfirmed.add(name)
                await self._end_unknown(name, actor)
            else:
                self._keep(KeptProcess(spec, actor=actor))

    async def start(self, spec: ProcessSpec) -> None:
        if spec.name in self._kept:
            raise ValueError(f"{spec.name} runs already")
        self._keep(KeptProcess(spec, self._nodes_to_avoid()))

    async def stop(self, name: str, grace: float) -> None:
        kept = self._kept.get(name)
        if kept is None:
            return
        kept.stopping = True
        ended = None
        try:
            if kept.is_answering:
                seconds = grace + _STOP_SECONDS if kept.reachable else _STOP_SECONDS
                ended = await answer(lambda: kept.actor.stop.remote(grace), seconds)
        finally:
            is_dropped = await self._drop(kept)
        if not is_dropped:
            return
        await self._remove_groups()
        # A process that did not confirm its end may still run: without a pid, it does not count as ended.
        self._notify(Exit(kept.spec, kept.report.pid if ended and kept.report is not None else 0, 0, None))

    async def replace(self, name: str) -> None:
        kept = self._kept.get(name)
        if kept is None or kept.stopping:
            return
        if kept.report is not None:
            self._avoided[kept.report.node] = monotonic() + _AVOIDED_SECONDS
        if await self._dropped_to_start_again(kept):
            self._keep(KeptProcess(kept.spec, self._nodes_to_avoid()))
            where = f" with Ray node {kept.report.address}" if kept.report is not None else ""
            self._notify(Exit(kept.spec, 0, 1, 0.0, f"was lost{where}"))

    def running(self) -> dict[str, Running]:
        return {
            name: Running(
                kept.report.pid if kept.report is not None else 0,
                kept.spec,
                kept.since,
                kept.report.restarts if kept.report is not None else 0,
                kept.stopping,
                kept.report.address if kept.report is not None else "",
                kept.reachable,
                kept.waits,
            )
            for name, kept in self._kept.items()
        }

    def last_lines(self, name: str, count: int) -> Sequence[str]:
        kept = self._kept.get(name)
        return kept.lines[-count:] if kept is not None else ()

    def log_place(self, name: str) -> str:
        kept = self._kept.get(name)
        report = kept.report if kept is not None else None
        return f"{report.log} on {report.address}" if report is not None else "none yet"

    def may_run(self, name: str, pid: int) -> bool:
        # An actor that does not answer may have a process that runs.
        return name in self._kept or name in self._unconfirmed

    async def close(self) -> None:
        tasks = [kept.watching for kept in self._kept.values() if kept.watching is not None]
        tasks += [self._looking] if self._looking is not None else []
        for task in tasks:
            task.cancel()
        makings = [kept.making for kept in self._kept.values() if kept.making is not None]
        await asyncio.gather(*tasks, *makings, return_exceptions=True)

    async def _end_unknown(self, name: str, actor: Any) -> None:
        try:
            await self._cluster.kill(actor)
        except Exception as error:
            log.warning("Ray does not end an actor that does not answer", process=name, error=str(error))

    def _keep(self, kept: KeptProcess) -> None:
        self._kept[kept.spec.name] = kept
        kept.watching = asyncio.create_task(self._watch(kept), name=f"ray-{kept.spec.name}")
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_at_nodes(), name="ray-nodes")

    async def _drop(self, kept: KeptProcess) -> bool:
        """End the actor of a process. False: another call did, or Ray failed to; then the process is still kept."""
        async with kept.dropping:
            if self._kept.get(kept.spec.name) is not kept:
                return False
            if kept.watching is not None:
                kept.watching.cancel()
                await asyncio.gather(kept.watching, return_exceptions=True)
            if kept.making is not None:
                await asyncio.gather(kept.making, return_exceptions=True)
            try:
                # One whose making failed may exist all the same.
                actor = kept.actor if kept.actor is not None else (await self._cluster.find()).get(kept.spec.name)
                if actor is not None:
                    await self._cluster.kill(actor)
            except Exception as error:
                log.warning("Ray does not end the actor of a process", process=kept.spec.name, error=str(error))
                await asyncio.sleep(_AGAIN_SECONDS)
                kept.stopping = False  # the supervisor decides again
                self._keep(kept)
                return False
            del self._kept[kept.spec.name]
            return True

    async def _dropped_to_start_again(self, kept: KeptProcess) -> bool:
        """False: it was asked to stop meanwhile, or is still kept."""
        if not await self._drop(kept):
            return False
        if kept.stopping:
            self._notify(Exit(kept.spec, 0, 0, None))
        return not kept.stopping

    def _nodes_to_avoid(self) -> frozenset[str]:
        """Not those from which another actor answers: on a busy node, one process may be late alone."""
        reports = [kept.report for kept in self._kept.values() if kept.report is not None and kept.silent_since is None]
        answering = {report.node for report in reports}
        return frozenset(node for node, until in self._avoided.items() if until > monotonic() and node not in answering)

    # Reports.

    async def _watch(self, kept: KeptProcess) -> None:
        """Read the reports of an actor, and make another one if it ends for good."""
        from ray.exceptions import ActorDiedError

        while kept.actor is not None or not kept.stopping:
            asked = monotonic()
            try:
                if kept.actor is None and not await self._is_made(kept):
                    continue
                self._reported(kept, await self._next_report(kept))
            except ActorDiedError as error:
                await self._died(kept, error)
            except Exception:
                # Ray restarts the actor, or does not reach it.
                if kept.report is not None:
                    kept.silent_since = kept.silent_since or asked
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _is_made(self, kept: KeptProcess) -> bool:
        """Make the actor. False: Ray rejects its needs, or its name is taken."""
        kept.making = asyncio.create_task(self._make(kept))
        try:
            await asyncio.shield(kept.making)
        except ValueError as error:
            if (other := (await self._cluster.find()).get(kept.spec.name)) is not None:
                return await self._is_taken_over(kept, other)
            kept.waits = f"Ray rejects its needs: {' '.join(str(error).split())}"
            await asyncio.sleep(_REJECTED_SECONDS)
            return False
        return True

    async def _make(self, kept: KeptProcess) -> None:
        kept.actor = await self._cluster.create(kept.spec, kept.avoided)

    async def _is_taken_over(self, kept: KeptProcess, other: Any) -> bool:
        """``other``: an actor that has the name. One of the same spec is adopted, any other is ended."""
        if await spec_of(kept.spec.name, other) != kept.spec:
            await self._cluster.kill(other)
            return False
        kept.actor, kept.adopted = other, True
        return True

    async def _next_report(self, kept: KeptProcess) -> Report:
        asked = monotonic()
        seen = (kept.report.instance, kept.report.version) if kept.report is not None else ("", -1)
        answer = asyncio.ensure_future(_awaited(kept.actor.report.remote(*seen)))
        try:
            done, _ = await asyncio.wait((answer,), timeout=SILENCE)
            if not done and kept.report is not None:
                kept.silent_since = kept.silent_since or asked
            return decode_report(await answer)
        finally:
            answer.cancel()

    def _reported(self, kept: KeptProcess, report: Report) -> None:
        before, kept.report = kept.report, report
        self._unconfirmed.discard(kept.spec.name)
        kept.silent_since = None
        kept.refusals.pop(report.node, None)
        if report.refusal:
            text = f"Ray node {report.address} {report.refusal}"
            kept.refusals[report.node] = Refusal(text, monotonic() + _AVOIDED_SECONDS)
        kept.waits = kept.refusal if report.refusal else ""
        kept.since = monotonic() - report.age
        if before is not None and before.instance != report.instance:
            # Ray restarted the actor. On the same node the process ended with it; another node may be out of reach.
            is_dead = before.node == report.node
            reason = "ended with its Ray actor" if is_dead else f"was lost with Ray node {before.address}"
            self._notify(Exit(kept.spec, before.pid if is_dead else 0, 1, 0.0, reason))
        for each in report.exits:
            kept.lines = each.lines
            if not kept.stopping and not (before is None and kept.adopted):
                self._notify(Exit(kept.spec, each.pid, each.status, each.again_in, each.reason))

    async def _died(self, kept: KeptProcess, error: Exception) -> None:
        kept.actor = None
        if kept.stopping:
            return
        kept.report = kept.silent_since = None
        kept.adopted = False
        pause = kept.backoff.pause(monotonic() - kept.since)
        kept.lines = tuple(line for line in str(error).splitlines() if line.strip())
        self._notify(Exit(kept.spec, 0, 1, pause, "ended with its Ray actor, which Ray does not restart"))
        await asyncio.sleep(pause)
        kept.since = monotonic()

    # Nodes.

    async def _look_at_nodes(self) -> None:
        """Keep the reasons of processes that have no node, and look for nodes with more memory."""
        while True:
            await asyncio.sleep(_NODES_SECONDS)
            ends = monotonic() - _PATIENCE
            kept_here = [kept for kept in self._kept.values() if kept.actor is not None]
            waiting = [kept for kept in kept_here if kept.report is None and kept.since < ends]
            refused = [kept for kept in kept_here if kept.report is not None and kept.report.refusal]
            if not waiting and not refused:
                continue
            try:
                nodes = await self._cluster.nodes()
                for kept in waiting:
                    await self._explain(kept, nodes)
                for kept in refused:
                    await self._move(kept, nodes)
            except Exception as error:
                log.warning("Ray does not list its nodes", error=str(error))

    async def _explain(self, kept: KeptProcess, nodes: Sequence[Node]) -> None:
        avoided = self._nodes_to_avoid() | kept.refusing_nodes
        if kept.avoided and not kept.stopping and not kept.avoided & avoided:
            # The node that it was kept away from may be the only one with room.
            if await self._dropped_to_start_again(kept):
                self._keep(KeptProcess(kept.spec))
            return
        usable = [node for node in nodes if node.identity not in kept.avoided]
        reason = waiting_reason(kept.spec.needs or Needs(), usable, monotonic() - kept.since)
        kept.waits = f"{kept.refusal}; {reason}" if kept.refusal and reason else kept.refusal or reason

    async def _move(self, kept: KeptProcess, nodes: Sequence[Node]) -> None:
        """Try another node: its own has not the memory that Ray counts on. Without one it stays, and may yet start."""
        needs = kept.spec.needs or Needs()
        avoided = self._nodes_to_avoid() | kept.refusing_nodes
        others = [node for node in nodes if node.identity not in avoided]
        # A process of a group has to be where its group is.
        if needs.group or kept.stopping or waiting_reason(needs, others, 0.0):
            return
        if await self._dropped_to_start_again(kept):
            self._keep(KeptProcess(kept.spec, avoided, refusals=kept.refusals))

    async def _remove_groups(self) -> None:
        try:
            await self._cluster.remove_groups([kept.spec.needs for kept in self._kept.values() if kept.spec.needs])
        except Exception as error:
            log.warning("Ray does not list its placement groups", error=str(error))


async def _awaited(reference: Any) -> Any:
    return await reference
