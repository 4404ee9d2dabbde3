"""To which tick a remote answer belongs: it is used in its own tick or not at all. Pure.

An answer that comes after its tick has acted is late: it is reported with its age, and its round trip counts, but no
later tick acts on it. Each request is answered at most once.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

_NONE = -1


class Arrival(Enum):
    IN_TIME = "in time"
    LATE = "late"
    #: Not asked for, or answered before.
    UNKNOWN = "unknown"


class ArrivedAnswer(NamedTuple):
    arrival: Arrival
    #: Nanoseconds since it was asked for.
    age: int


class LateAnswers:
    """The requests of one loop, and the one tick that can still use an answer."""

    __slots__ = ("_asked", "_open")

    def __init__(self) -> None:
        self._asked: dict[int, int] = {}
        self._open = _NONE

    def open(self, tick: int) -> None:
        """From now on this tick's answer can be used, and no other's."""
        self._open = tick

    def close(self) -> None:
        """The action is chosen."""
        self._open = _NONE

    def asked(self, tick: int, now: int) -> None:
        self._asked[tick] = now

    def arrived(self, tick: int, now: int) -> ArrivedAnswer:
        asked = self._asked.pop(tick, None)
        if asked is None:
            return ArrivedAnswer(Arrival.UNKNOWN, 0)
        return ArrivedAnswer(Arrival.IN_TIME if tick == self._open else Arrival.LATE, now - asked)

    def given_up(self, tick: int) -> bool:
        """No answer will come. Whether the open tick was waiting for it."""
        self._asked.pop(tick, None)
        return tick == self._open
