"""One process that the engine keeps, and what is known of its actor. A plain value: ``engine`` changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.engines.local.backoff import Backoff
from isochrone.engines.ray.actor import HOLD_SECONDS
from isochrone.engines.ray.reports import Report

#: Seconds without an answer until an actor counts as not reachable.
SILENCE = HOLD_SECONDS + 1.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node that has not the memory which Ray counts on."""

    text: str
    #: On the monotonic clock; afterwards the node may be tried again.
    until: float


class KeptProcess:
    """``actor``: one that an earlier supervisor left. ``refusals``: by node."""

    def __init__(
        self,
        spec: ProcessSpec,
        avoided: frozenset[str] = frozenset(),
        actor: Any = None,
        refusals: Mapping[str, Refusal] | None = None,
    ) -> None:
        self.spec = spec
        self.refusals = dict(refusals or {})
        #: Nodes that the actor may not be placed on.
        self.avoided = avoided
        #: None: it is to be made.
        self.actor = actor
        #: Makes the actor. Ray cannot be asked to stop half-way.
        self.making: asyncio.Task[None] | None = None
        #: An earlier supervisor has seen the deaths so far.
        self.adopted = actor is not None
        self.backoff = Backoff()
        #: The last report; None: none since the actor was made.
        self.report: Report | None = None
        #: When the process was started; without a report: when the actor was asked for.
        self.since = monotonic()
        #: Since when the actor owes an answer; None: it does not.
        self.silent_since: float | None = None
        self.stopping = False
        #: Held while the actor is ended.
        self.dropping = asyncio.Lock()
        self.waits = ""
        self.lines: tuple[str, ...] = ()
        #: Reads the reports.
        self.watching: asyncio.Task[None] | None = None

    @property
    def reachable(self) -> bool:
        return self.silent_since is None or monotonic() - self.silent_since < SILENCE

    @property
    def refusing_nodes(self) -> frozenset[str]:
        return frozenset(node for node, refusal in self.refusals.items() if refusal.until > monotonic())

    @property
    def refusal(self) -> str:
        """What all refusals that count say."""
        return "; ".join(refusal.text for refusal in self.refusals.values() if refusal.until > monotonic())

    @property
    def is_answering(self) -> bool:
        """Whether its actor has been seen to run, by this supervisor or by an earlier one."""
        return self.actor is not None and (self.report is not None or self.adopted)
