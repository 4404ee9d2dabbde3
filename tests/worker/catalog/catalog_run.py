"""Runs a scenario on a catalog of one model; afterwards models that wait for a file named "go" may end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from isochrone.models.repository.repository import Repository
from isochrone.worker.catalog.catalog import Catalog


def run(model: Path, scenario: Callable[[Catalog], Awaitable[None]]) -> None:
    async def play() -> None:
        catalog = Catalog(Repository([model.parent]), None, 30)
        try:
            await scenario(catalog)
        finally:
            (model / "go").touch()
            await catalog.close(5)

    asyncio.run(asyncio.wait_for(play(), 100))
