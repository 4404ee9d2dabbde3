"""A plan of model placement: the moves in their order, the replicas after them, and what could not be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isochrone.control.placement.workers import Replicas

ADD, REMOVE = "add", "remove"

#: Why a move is made.
RETIRED = "retired"
RESTORE = "restore"
RULE = "rule"
ROOM = "room"
MEMORY = "memory"
COLD = "cold"
HOT = "hot"
OVERLOAD = "overload"
BALANCE = "balance"
#: Of the execution of a plan, not of plans: the worker could not load it; it serves the model, and no other one does.
FAILED = "failed"
ADOPTED = "adopted"


@dataclass(frozen=True, slots=True)
class Move:
    """One load or unload of one model on one worker."""

    action: str
    model: str
    worker: str
    #: One of the words above.
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves in an order in which memory suffices after each of them, and in which a model is added before it is
    removed elsewhere. An add may start when the moves before it on the same worker are done."""

    replicas: Replicas
    moves: tuple[Move, ...] = ()
    #: By model: why it has no worker that it may have, in figures.
    unplaced: Mapping[str, str] = field(default_factory=dict)
    #: By model that has replicas: what they lack. It is served, but not as it should be.
    short: Mapping[str, str] = field(default_factory=dict)
    #: Workers where a rollout of the largest model would not fit beside what is served.
    without_room: tuple[str, ...] = ()
