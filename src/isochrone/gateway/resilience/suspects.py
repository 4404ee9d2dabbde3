"""Suspects and quarantine: requests that may have killed the worker that ran them. Pure.

When a worker's process ends, one of its requests in flight may be the cause. Each becomes a suspect: it is sent once
more, alone among suspects on its endpoint (``retrials``). A suspect that is answered is cleared. A suspect that loses a
second process is quarantined: identical requests are rejected for some time. After the quarantine it is a suspect
again, so a request that still kills costs one process more, not two. One lost process must never quarantine a request.

Suspects are sent one at a time so that a killer costs two processes: if a process ends under several suspects, the
killer is not identified, and a third attempt, alone, is needed. If the rules allow several at once, those that lose a
second process together continue alone, and a killer costs three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from isochrone.settings.ranges import Duration, Positive


@dataclass(frozen=True, slots=True)
class QuarantineRules:
    """How requests of one model that lose workers are treated."""

    enabled: bool = True
    #: How long requests are rejected that are identical to a request that lost two processes.
    duration_ns: Duration = 300_000_000_000
    #: How long a request that lost one process, and has not been answered since, stays a suspect.
    suspicion_ns: Duration = 60_000_000_000
    #: Suspects of this model on one worker at once. 1: a killer costs two processes. More: the innocent ones are
    #: answered earlier, and a killer costs three.
    suspects_at_once: Positive = 1


class Key(NamedTuple):
    """The identity that identical requests share."""

    model: str
    version: str
    #: Hash of the body without the request's id.
    fingerprint: bytes


class Standing(Enum):
    CLEAR = "clear"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"


class _Case:
    __slots__ = ("in_company", "quarantined_until", "suspect_until")

    def __init__(self, suspect_until: int) -> None:
        self.suspect_until = suspect_until
        self.quarantined_until = 0
        #: It has lost a second process, together with other suspects.
        self.in_company = False


class Suspects:
    """The cases of one gateway; at most ``most``, of which the oldest are evicted."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._cases: dict[Key, _Case] = {}
        self._models: Counter[str] = Counter()

    def standing(self, key: Key, now: int) -> Standing:
        case = self._cases.get(key)
        if case is None or now >= case.suspect_until:
            return Standing.CLEAR
        return Standing.QUARANTINED if now < case.quarantined_until else Standing.SUSPECT

    def lost(
        self, requests: Iterable[tuple[Key, bool]], now: int, rules: Callable[[str], QuarantineRules]
    ) -> frozenset[Key]:
        """Record a process that ended with these requests in flight, each with whether it was sent as a suspect.

        Returns the keys that are quarantined now. ``rules``: by model.
        """
        on_trial: dict[Key, bool] = {}
        for key, was_suspect in requests:
            on_trial[key] = on_trial.get(key, False) or was_suspect
        # Of two suspects on one process either may be the cause: both continue, separately.
        tried = [key for key, was_suspect in on_trial.items() if was_suspect]
        guilty = frozenset(tried) if len(tried) == 1 else frozenset()
        for key in on_trial:
            own = rules(key.model)
            case = self._open(key)
            if key in guilty:
                case.quarantined_until = now + own.duration_ns
            elif on_trial[key]:
                case.in_company = True
            case.suspect_until = max(now, case.quarantined_until) + own.suspicion_ns
        return guilty

    def goes_alone(self, key: Key) -> bool:
        """Whether it must be the only suspect on its next worker, whatever the rules allow."""
        case = self._cases.get(key)
        return case is not None and (case.in_company or case.quarantined_until > 0)

    def cleared(self, key: Key) -> bool:
        """Clear a key: a worker has answered such a request and lives. Returns whether that closed a case."""
        if self._cases.pop(key, None) is None:
            return False
        self._closed(key)
        return True

    def watches(self, model: str) -> bool:
        """Whether requests of a model must be checked: it has cases."""
        return model in self._models

    def quarantined(self, model: str, now: int) -> int:
        """The number of different requests of a model that are rejected now."""
        if model not in self._models:
            return 0
        return sum(now < case.quarantined_until for key, case in self._cases.items() if key.model == model)

    def sweep(self, now: int) -> None:
        """Close expired cases."""
        for key in [key for key, case in self._cases.items() if now >= case.suspect_until]:
            del self._cases[key]
            self._closed(key)

    @property
    def models(self) -> frozenset[str]:
        return frozenset(self._models)

    def _open(self, key: Key) -> _Case:
        case = self._cases.pop(key, None)
        if case is None:
            case = _Case(0)
            self._models[key.model] += 1
            if len(self._cases) >= self._most:
                self._evict()
        self._cases[key] = case  # the newest are last
        return case

    def _evict(self) -> None:
        """Evict the oldest case, suspects before quarantined ones."""
        oldest = next(iter(self._cases))
        for key, case in self._cases.items():
            if not case.quarantined_until:
                oldest = key
                break
        del self._cases[oldest]
        self._closed(oldest)

    def _closed(self, key: Key) -> None:
        self._models[key.model] -= 1
        if not self._models[key.model]:
            del self._models[key.model]
