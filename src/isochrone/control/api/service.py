"""The service behind every route: reads from the mirror, writes by compare-and-swap.

Reads are answered from this controller's mirror, also while the store is unavailable. Writes are decided on a fresh
listing, so that the latest writes of other controllers count, and are retried if a record changed in between.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from isochrone.control.api.answers.scrape_targets import ScrapeTargets
from isochrone.control.api.callers.rights import Rights
from isochrone.control.api.messages import StoreState
from isochrone.control.figures.history import History
from isochrone.control.requests.decisions import Decision, RequestContext
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import NO_FIELDS
from isochrone.control.state.view import View
from isochrone.control.what_if.answers import WhatIfAnswer
from isochrone.control.what_if.asking import SharedSituation, Simulator, present_situation
from isochrone.control.what_if.situation import Situation
from isochrone.errors import Unavailable, Unsupported
from isochrone.secure.audit.audit import Audit
from isochrone.store.base import Store, StoreUnavailable
from isochrone.store.mirror import Mirror

Answer = TypeVar("Answer")

#: Attempts at a write. Records change a few times a second at most.
_ATTEMPTS = 10
#: Seconds an answer waits for the mirror to show what was just written.
_CATCH_UP_SECONDS = 2.0


class ControlService:
    """The service of one controller."""

    def __init__(
        self,
        store: Store,
        mirror: Mirror,
        keys: Keys,
        write_error: Callable[[], str] = str,
        history: History | None = None,
        simulator: Simulator | None = None,
        rights: Rights | None = None,
        audit: Audit | None = None,
        own_fields: Mapping[str, str] = NO_FIELDS,
    ) -> None:
        """``write_error``: why nothing can be written, if that is known; "": it can. ``history``: this controller's.
        ``simulator``: answers what-if questions. ``rights``: of the clients; None: every one may change the fleet.
        ``audit``: records changes; None: nothing does. ``own_fields``: headers that prove to the fleet's processes that
        a controller asks."""
        self.store = store
        self.own_fields = own_fields
        self.rights = rights or Rights()
        self.audit = audit
        #: The figures of the fleet; empty if nothing collects them.
        self.history = history or History()
        self._simulator = simulator
        #: The present fleet, for the simulator.
        self.situation = SharedSituation(self._present_situation)
        self._write_error = write_error
        self.mirror = mirror
        self.keys = keys
        #: The metrics pages that Prometheus reads.
        self.scrape_targets = ScrapeTargets()
        #: Set when the controller stops: streams end then.
        self.stopping = asyncio.Event()

    def view(self) -> View:
        return View(self.keys, self.mirror.entries)

    def store_state(self) -> StoreState:
        # A full disk can be read: by the mirror alone, that store would look healthy.
        mirror = self.mirror
        error = mirror.error or self._write_error()
        return StoreState(self.store.url, mirror.connected and not error, error, mirror.revision)

    async def _present_situation(self) -> Situation:
        return await present_situation(View(self.keys, dict(self.mirror.entries)), self.history)

    async def what_if(self, questions: Sequence[str], seed: int = 1, seconds: float | None = None) -> WhatIfAnswer:
        """The present fleet, and what it would be after ``questions``, simulated in another process."""
        if self._simulator is None:
            raise Unsupported("this controller has no simulator; 'isochrone what-if --situation FILE' works without it")
        return await self._simulator.answer(self.situation, questions, seed, seconds)

    async def changed(self, after: int, seconds: float) -> bool:
        """Whether the mirror has passed a revision; wait for that, or for the controller's end."""
        waiting = [
            asyncio.ensure_future(self.mirror.changed(after, seconds)),
            asyncio.ensure_future(self.stopping.wait()),
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return waiting[0].done() and waiting[0].result()
        finally:
            for each in waiting:
                each.cancel()

    async def preview(self, decide: Callable[[View], Answer], *, by_epoch: bool = True) -> Answer:
        """Decide on the present records, and write nothing. ``by_epoch``: whether the decision depends on the epoch."""
        view = View(self.keys, (await self.store.list(self.keys.prefix)).entries)
        if by_epoch:
            view.require(self.keys.epoch)
        return decide(view)

    async def change(
        self, who: str, decide: Callable[[View, RequestContext], Decision[Answer]], *, by_epoch: bool = True
    ) -> Answer:
        """Decide and write; return when this controller's reads show it."""
        context = RequestContext(who, time.time(), secrets.token_hex(4))
        for _ in range(_ATTEMPTS):
            decision = await self.preview(lambda view: decide(view, context), by_epoch=by_epoch)
            if not decision.operations:
                return decision.answer
            outcome = await self.store.transact(decision.compares, decision.operations)
            if outcome.succeeded:
                await self._catch_up(outcome.revision)
                return decision.answer
        raise Unavailable(f"the fleet's records changed {_ATTEMPTS} times while this was decided; try again")

    async def _catch_up(self, revision: int) -> None:
        """Wait for the mirror. The write stands whether or not the mirror shows it in time."""
        try:
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                await self.mirror.catch_up(revision)
        except (TimeoutError, StoreUnavailable):
            pass
