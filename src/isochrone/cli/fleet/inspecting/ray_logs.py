"""The last lines of logs on the nodes of a Ray cluster, which the actors of the processes read."""

from __future__ import annotations

import asyncio
from typing import Any

from isochrone.cli.api_client import ApiFailed
from isochrone.suggestions import suggestion

#: Seconds for all actors to answer.
_SECONDS = 5.0


def ray_tails(fleet: str, address: str, process: str | None, lines: int) -> dict[str, list[str]]:
    """By process. Raise ``ApiFailed`` or the errors of ``connect``."""
    from isochrone.engines.ray.cluster import RayCluster
    from isochrone.engines.ray.connecting import connect, disconnect

    connect(address)
    try:
        return asyncio.run(_tails(RayCluster(fleet, {}), process, lines))
    finally:
        disconnect()


async def _tails(cluster: Any, process: str | None, lines: int) -> dict[str, list[str]]:
    actors = dict(sorted((await cluster.find()).items()))
    if not actors:
        raise ApiFailed("the Ray cluster has no process of this fleet; start it with 'isochrone up --engine ray'")
    if process is not None:
        if process not in actors:
            raise ApiFailed(f"process '{process}': expected {suggestion(process, list(actors), 'process')}")
        actors = {process: actors[process]}
    tails = await asyncio.gather(*(_tail(actor, lines) for actor in actors.values()))
    return dict(zip(actors, tails, strict=True))


async def _tail(actor: Any, lines: int) -> list[str]:
    try:
        async with asyncio.timeout(_SECONDS):
            return list(await actor.last_lines.remote(lines))
    except Exception as error:
        return [f"(its Ray actor does not answer: {type(error).__name__})"]
