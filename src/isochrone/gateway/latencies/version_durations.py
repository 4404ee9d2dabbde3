"""The durations of one model's requests, by version and outcome. Pure.

Labels are bounded: a version has series of its own only while a worker is known to serve it, or a control plane has
committed it. Versions that callers make up share those of ``other``.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from isochrone.gateway.latencies.durations import OWN_BOUNDS_NS, Durations

#: Outcomes as callers see them, by number: an answer (the caller's own mistake included); a rejection by this gateway
#: or by workers; a deadline that passed or could not be met; a failure; a caller who left before the answer.
OUTCOMES: Final = ("answered", "rejected", "deadline_exceeded", "failed", "cancelled")
ANSWERED: Final = 0
REJECTED: Final = 1
DEADLINE_EXCEEDED: Final = 2
FAILED: Final = 3
CANCELLED: Final = 4
#: Versions of one model with series of their own.
_MOST_VERSIONS: Final = 64


class VersionDurations:
    """The durations of one version's requests. ``of_outcome``: by the number of the outcome; None: there was none."""

    __slots__ = ("of_outcome", "version")

    def __init__(self, version: str) -> None:
        self.version = version
        self.of_outcome: list[Durations | None] = [None] * len(OUTCOMES)

    def add(self, outcome: int, bucket: int, duration_ns: int) -> Durations:
        """Count a request; returns where it was counted."""
        durations = self.of_outcome[outcome]
        if durations is None:
            durations = self.of_outcome[outcome] = Durations()
        # ``Durations.add``, without the call.
        durations.counts[bucket] += 1
        durations.sum_ns += duration_ns
        return durations


class ModelDurations:
    """The durations of one model's requests."""

    def __init__(self) -> None:
        #: Of requests that no version was found for, and of versions that nobody serves.
        self.other = VersionDurations("")
        #: The gateway's own share of answered requests; not of streams.
        self.own = Durations(OWN_BOUNDS_NS)
        self._versions: dict[str, VersionDurations] = {"": self.other}

    def of(self, version: str, served: Container[str]) -> VersionDurations:
        """The durations of a version that is served. ``served``: versions that must not be forgotten for its sake."""
        found = self._versions.get(version)
        if found is not None:
            return found
        if len(self._versions) >= _MOST_VERSIONS:
            for known in list(self._versions):
                if known and known not in served:
                    del self._versions[known]
        if len(self._versions) >= _MOST_VERSIONS:
            return self.other
        made = self._versions[version] = VersionDurations(version)
        return made

    def versions(self) -> list[VersionDurations]:
        return list(self._versions.values())
