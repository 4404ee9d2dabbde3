"""The one wait of a loop: until an instant, or until a condition holds that is checked after each event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from isochrone.clock import SECOND


class Wait:
    __slots__ = ("_clock", "_is_over", "_waiting")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._waiting: asyncio.Future[None] | None = None
        self._is_over: Callable[[], bool] = lambda: True

    async def until(self, instant: int, is_over: Callable[[], bool]) -> None:
        """Return at the instant, or earlier: at once, or at the ``check`` where ``is_over`` is true."""
        if is_over():
            return
        loop = asyncio.get_running_loop()
        self._waiting = waiting = loop.create_future()
        self._is_over = is_over
        timer = loop.call_later(max(0, instant - self._clock()) / SECOND, _finish, waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting = None

    def check(self) -> None:
        """After an event that the condition may depend on."""
        if self._waiting is not None and self._is_over():
            _finish(self._waiting)


def _finish(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
