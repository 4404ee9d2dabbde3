"""Requests whose token names a key that is being fetched: they wait for it, few of them and briefly.

Strangers can send such tokens too, so a request that finds no place is refused at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: Requests of one process. Their bodies count in its memory budget.
MOST_HELD: Final = 256
#: A provider answers within tens of milliseconds. One that does not must not hold callers up for long.
LONGEST_SECONDS: Final = 5.0


class HeldRequests:
    """Those that wait for one fetch."""

    __slots__ = ("_resumes",)

    def __init__(self) -> None:
        #: In the order of their arrival.
        self._resumes: dict[Callable[[], None], None] = {}

    def hold(self, resume: Callable[[], None]) -> bool:
        """Call ``resume`` once it is decided what the token proves; False: too many requests wait."""
        if len(self._resumes) >= MOST_HELD:
            return False
        self._resumes[resume] = None
        return True

    def forget(self, resume: Callable[[], None]) -> None:
        """Its caller has gone."""
        self._resumes.pop(resume, None)

    def release(self) -> None:
        resumes, self._resumes = self._resumes, {}
        for resume in resumes:
            resume()
