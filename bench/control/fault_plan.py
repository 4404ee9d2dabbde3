"""The rollouts of a run and the faults in each: a pure function of the seed.

Every rollout draws from a generator of its own, so a longer run begins like a shorter one, and the tenth rollout of a
seed can be looked at again without guessing. Faults are placed by the phase of the rollout, not by the clock, which
differs from one machine to the next.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.control.checker import FAST, STRICT
from bench.control.models import CHAIN, SOLO, STAGES

KILL, STOP, CUT = "kill", "stop", "cut"
#: In the order of a rollout.
PHASES = ("pending", "preparing", "switching", "draining", "done")
#: Versions in the cycle: far more than are served in quick succession, so that an answer identifies its epoch.
VERSIONS = 12
ROLLBACK = "rollback"

_CHANGES: tuple[tuple[str, ...], ...] = ((SOLO,), STAGES, (CHAIN, *STAGES), (SOLO, CHAIN, *STAGES))
_ROLLBACK_SHARE = 0.1
_SECOND_FAULT_SHARE = 0.25
_SHORTEST, _LONGEST = 0.2, 6.0
#: A rollout takes some tenths of a second: a longer delay would mostly strike when it is over.
_MOST_DELAY = 0.08


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: str
    role: str
    #: The process among those of its role.
    index: int
    #: It strikes when the rollout has reached the phase, after the delay.
    phase: str
    delay_seconds: float
    #: Of stop and cut.
    lasts_seconds: float = 0.0


@dataclass(frozen=True)
class PlannedRollout:
    """One rollout and its faults."""

    number: int
    #: "rollback": of the first of the models, to its previous version.
    kind: str
    models: tuple[str, ...]
    version: str
    cutover: str
    faults: tuple[Fault, ...]


def plan(seed: int, faults: int, roles: Mapping[str, int], *, can_cut: bool) -> Iterator[PlannedRollout]:
    """Rollouts until so many faults are placed. ``roles``: how many processes of each there are."""
    number = placed = 0
    while placed < faults:
        number += 1
        planned = _rollout(random.Random(f"{seed}/{number}"), number, roles, can_cut)
        placed += len(planned.faults)
        yield planned


def _rollout(draw: random.Random, number: int, roles: Mapping[str, int], can_cut: bool) -> PlannedRollout:
    models = draw.choice(_CHANGES)
    kind = ROLLBACK if number > 1 and draw.random() < _ROLLBACK_SHARE else "version"
    first = _fault(draw, roles, can_cut, ())
    struck = [first]
    if draw.random() < _SECOND_FAULT_SHARE:
        # Never the same process twice: the effects of the faults could not be distinguished.
        struck.append(_fault(draw, roles, can_cut, ((first.role, first.index),)))
    version = str(1 + number % VERSIONS)
    return PlannedRollout(number, kind, models, version, draw.choice((FAST, STRICT, STRICT)), tuple(struck))


def _fault(draw: random.Random, roles: Mapping[str, int], can_cut: bool, spared: tuple[tuple[str, int], ...]) -> Fault:
    free = {role: [n for n in range(count) if (role, n) not in spared] for role, count in roles.items()}
    role = draw.choice(sorted(role for role, numbers in free.items() if numbers))
    index = draw.choice(free[role])
    kind = draw.choice((KILL, STOP, CUT) if can_cut else (KILL, STOP))
    lasts = 0.0 if kind == KILL else draw.uniform(_SHORTEST, _LONGEST)
    return Fault(kind, role, index, draw.choice(PHASES), draw.uniform(0, _MOST_DELAY), lasts)
