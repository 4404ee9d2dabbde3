"""Repeats a call until the store is available."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from isochrone.store.base import StoreUnavailable

_Result = TypeVar("_Result")

#: Seconds between attempts: the first pause, which doubles, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


async def until_available(call: Callable[[], Awaitable[_Result]]) -> _Result:
    """For calls that may be repeated: an attempt that raised may have been written."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
