"""Answers that a service has now, or later.

A worker answers its control calls at once; one of several processes that serve as one asks the others first. Both
transports use ``then``, so that an answer that is there costs no task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


def then(answer: _T | Awaitable[_T], finish: Callable[[_T], Any]) -> Any:
    """``finish(answer)``, or a coroutine for it if the answer comes later."""
    return _later(answer, finish) if isinstance(answer, Awaitable) else finish(answer)


async def _later(answer: Awaitable[_T], finish: Callable[[_T], Any]) -> Any:
    return finish(await answer)
