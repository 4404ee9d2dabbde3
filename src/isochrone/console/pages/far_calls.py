"""Calls of functions that may hang, such as those that look into a repository that is far: few at once.

They have threads of their own, so that hung ones take none from the rest of the controller. The threads are daemons: a
controller that stops does not wait for them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from isochrone.errors import Unavailable

_MOST: Final = 2

_Result = TypeVar("_Result")


class FarCalls:
    """At most ``most`` at once, in one event loop."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._running = 0

    async def call(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Raise ``Unavailable`` while too many run. A call whose caller gave up runs, and counts, until it returns."""
        if self._running >= self._most:
            raise Unavailable(f"{self._most} earlier looks into repositories have not ended; try again later")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Result] = loop.create_future()

        def ended(error: BaseException | None, result: _Result | None) -> None:
            self._running -= 1
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            try:
                told = partial(ended, None, function(*arguments))
            except Exception as error:
                told = partial(ended, error, None)
            # The loop may be closed by now.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(told)

        thread = threading.Thread(target=work, name="console-far-call", daemon=True)
        thread.start()
        self._running += 1
        return await answer
