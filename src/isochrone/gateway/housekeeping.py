"""Runs the gateway's long work in steps: one step in each turn of the loop, however many kinds of work are under way.

What grows with models or workers is written as a generator that yields after a bounded part of it. If every such work
took its own step per turn, a turn would hold the sum of them, and requests would wait for that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")
Steps = Generator[None, None, _T]


class Housekeeping:
    """The long work of one gateway. Works take turns, so that none waits for the end of another."""

    def __init__(self) -> None:
        self._works: deque[tuple[Steps[Any], asyncio.Future[Any]]] = deque()
        self._is_scheduled = False

    async def do(self, steps: Steps[_T]) -> _T:
        """Return what the generator returns when its last step is done. If this is cancelled, no step follows."""
        done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._works.append((steps, done))
        self._schedule()
        return await done

    def _schedule(self) -> None:
        if self._works and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._is_scheduled = False
        steps, done = self._works.popleft()
        try:
            if done.done():
                steps.close()
            else:
                next(steps)
                self._works.append((steps, done))
        except StopIteration as end:
            if not done.done():
                done.set_result(end.value)
        except Exception as error:
            if not done.done():
                done.set_exception(error)
        finally:
            self._schedule()


async def in_turns(steps: Iterator[None]) -> None:
    """Take a step in each turn of the loop, beside the housekeeping: for what callers wait for."""
    for _ in steps:
        await asyncio.sleep(0)


def finished(steps: Steps[_T]) -> _T:
    """All steps at once, where nothing else waits for the loop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
