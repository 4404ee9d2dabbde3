"""Checks of what the demo's agents received: requests in, violations out. Pure.

All times are of one monotonic clock: the agents are in one process. A request counts as sent a little before it was
and as answered a little after, so every violation found here did happen; one that took microseconds may be missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sighting:
    """One request, as its agent saw it. Times are in seconds."""

    agent: str
    #: When it was due: latency counts from here.
    due: float
    sent: float
    answered: float
    #: Versions of the pipeline and each of its stages, by the answer; empty: the request failed.
    versions: tuple[str, ...] = ()
    failure: str = ""

    @property
    def milliseconds(self) -> float:
        return (self.answered - self.due) * 1000


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run: a version change from its command's start to its end, or the time between two."""

    name: str
    begin: float
    #: Versions that a request of this phase may get.
    expected: frozenset[str]
    #: Of a change: "strict" or "fast".
    cutover: str = ""
    end: float = float("inf")

    def sent(self, sightings: Iterable[Sighting]) -> list[Sighting]:
        return [each for each in sightings if self.begin <= each.sent < self.end]


def versions_of(sightings: Iterable[Sighting]) -> set[str]:
    return {version for each in sightings for version in each.versions}


def mixed(sightings: Iterable[Sighting]) -> list[str]:
    """Answers whose pipeline and stages are not all of one version."""
    return [
        f"{each.agent} got versions {', '.join(each.versions)} in one answer"
        for each in sightings
        if len(set(each.versions)) > 1
    ]


def gone_back(sightings: Sequence[Sighting], old: str, new: str) -> list[str]:
    """Requests that got the old version although they were sent after another agent had received the new one."""
    first = min((each.answered for each in sightings if new in each.versions), default=float("inf"))
    return [
        f"{each.agent} got version {old} {(each.sent - first) * 1000:.1f} ms after version {new} was seen"
        for each in sightings
        if old in each.versions and each.sent > first
    ]


def violations(sightings: Sequence[Sighting], phases: Sequence[Phase]) -> list[str]:
    """All violations."""
    found = mixed(sightings)
    for index, phase in enumerate(phases):
        seen = phase.sent(sightings)
        found += [
            f"{each.agent} got version {', '.join(each.versions)} in the phase '{phase.name}'"
            for each in seen
            if not phase.expected.issuperset(each.versions)
        ]
        if phase.cutover == "strict":
            before, after = phases[index - 1], phases[index + 1]
            (old,), (new,) = before.expected, after.expected
            found += gone_back([*seen, *after.sent(sightings)], old, new)
    return found
