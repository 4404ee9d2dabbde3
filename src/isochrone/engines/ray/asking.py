"""Calls to an actor that may never answer, or may be of another release."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.engines.ray.reports import read_spec

#: Seconds for an actor that another supervisor made to name its process.
_SPEC_SECONDS = 10.0


async def answer(ask: Callable[[], Any], seconds: float) -> Any:
    """None: the actor did not answer in time, or is gone."""
    try:
        async with asyncio.timeout(seconds):
            return await ask()
    except Exception:
        return None


async def spec_of(name: str, actor: Any) -> ProcessSpec | None:
    """The process that an actor was made for. None: it does not answer."""
    value = await answer(lambda: actor.spec.remote(), _SPEC_SECONDS)
    return read_spec(name, value) if value is not None else None
