"""Connects a gateway to the store: registers it, applies the records, and takes part in strict switches.

Four parts do the work: ``gateway_registration``, ``gateway_records``, ``gateway_switching`` and ``gateway_waiting``.
While the store is unreachable the gateway keeps serving its last epoch; requests that wait for a switch are rejected
after a while.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.agents.access_following import AccessFollowing
from isochrone.control.agents.gateway_records import GatewayRecords
from isochrone.control.agents.gateway_registration import GatewayRegistration, NameTaken
from isochrone.control.agents.gateway_switching import GatewaySwitching
from isochrone.control.agents.gateway_waiting import GatewayWaiting
from isochrone.control.agents.link_rules import LinkRules
from isochrone.control.state.events import event
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import EventRecord
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.housekeeping import Steps
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.resolving.resolver import resolver
from isochrone.store.base import Compare, Put, Store, StoreUnavailable
from isochrone.store.mirror import Mirror
from isochrone.store.retrying import until_available

log = structlog.get_logger(__name__)

#: Faults of one kind that a gateway's record names, and characters of each.
_MOST_NAMED, _MOST_CHARACTERS = 50, 300
#: Seconds between two checks of what is held or has vanished.
_CHECK = 0.1
#: Seconds until records are applied again that could not be.
_AGAIN = 1.0


class GatewayLink:
    """One gateway's. ``read_rules``: the gateway rules of a fleet record. ``name_taken``: called when another gateway
    has this one's name, so that this one must stop."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        gateway: Gateway,
        record: GatewayRecord,
        read_rules: Callable[[bytes], GatewayRules],
        rules: LinkRules | None = None,
        name_taken: Callable[[NameTaken], None] = lambda error: None,
        access: AccessFollowing | None = None,
    ) -> None:
        """``access``: follows the fleet's access rules; None: the gateway checks no callers, or by a file."""
        self._access = access
        rules = rules or LinkRules()
        self._store = store
        self._keys = keys
        self._gateway = gateway
        self._record = record
        self.mirror = Mirror(store, keys.prefix)
        #: The keys of changes that are still to be applied, in their order; None: any key. And whether changes before
        #: them are being applied.
        self._due: list[Collection[str] | None] = []
        self._is_applying = False
        #: A change was applied: requests may be held, or workers' records may have vanished.
        self._check_due = asyncio.Event()
        self._tasks = BackgroundTasks()
        self._records = GatewayRecords(
            self.mirror, keys, gateway, record.name, read_rules, rules, self._tasks, self._write
        )
        self._switching = GatewaySwitching(store, self.mirror, keys, gateway, record, rules, self._tasks, self._apply)
        self._registration = GatewayRegistration(
            store,
            keys,
            self.mirror,
            record,
            self._current,
            lambda: gateway.fleet.epoch,
            rules.lease,
            name_taken,
        )
        self._waiting = GatewayWaiting(store, keys.waiting_at(record.name), gateway, lambda: self._registration.lease)
        self._registration.on_registered = self._waiting.registered
        gateway.fleet.lead()
        gateway.on_event = self._report_event
        gateway.control_token = record.control_token
        gateway.store_connected = lambda: self.mirror.connected

    async def start(self) -> None:
        """Return when the gateway is registered and serves the committed epoch; wait for the store if need be."""
        pause = 0.1
        while True:
            try:
                await self.mirror.start()
                break
            except StoreUnavailable as error:
                log.warning("the store does not answer; the gateway is not ready until it does", error=str(error))
                await asyncio.sleep(pause)
                pause = min(2.0, pause * 2)
        if self._access is not None:
            self._access.take_from(self.mirror)
            # Until then it would refuse everybody, while callers reach other gateways.
            await self._access.is_read.wait()
        await self._registration.start()
        self.mirror.on_change.append(lambda: self._apply(self.mirror.recent))
        self._apply()
        # The first epoch is served when discovery has ended.
        await self._tasks.finish()
        self._tasks.start(self._registration.keep())
        self._tasks.start(self._check())
        # If the epoch is there and cannot be read, there is nothing to serve until it is written again.
        while self._keys.epoch in self.mirror.entries and not self._gateway.fleet.epoch:
            await self.mirror.changed(self.mirror.revision, 0.1)

    async def stop(self) -> None:
        """Deregister. Only when the gateway admits nothing any more: no switch waits for it afterwards."""
        await self._tasks.end()
        await self._waiting.stop()
        try:
            async with asyncio.timeout(3):
                await self._registration.deregister()
        except (TimeoutError, StoreUnavailable) as error:
            log.warning("the gateway could not deregister", error=str(error))
        await self.mirror.stop()
        await self._store.close()

    def _apply(self, changed: Collection[str] | None = None) -> None:
        """``changed``: the keys that may differ from what is applied; None: any.

        A small change is applied at once. The rest of a larger one is housekeeping, and later changes wait for it.
        """
        self._due.append(changed)
        if self._is_applying:
            return
        self._is_applying = True
        self._check_due.set()
        steps = self._apply_due()
        try:
            next(steps)
        except StopIteration:
            return
        self._tasks.start(self._gateway.housekeeping.do(steps))

    def _apply_due(self) -> Steps[None]:
        try:
            while self._due:
                due, self._due = self._due, []
                try:
                    yield from self._apply_change(_all_keys(due))
                except Exception as error:
                    # Later changes must not wait for it, and requests may be held for this one.
                    log.error("applying the store's records failed unexpectedly", exc_info=error)
                    self._tasks.start(self._apply_again())
        finally:
            self._is_applying = False
            self._check_due.set()

    async def _apply_again(self) -> None:
        await asyncio.sleep(_AGAIN)
        self._apply()

    def _apply_change(self, changed: Collection[str] | None) -> Steps[None]:
        # Of the same revision as the epoch that is applied: a switch that ended with it is not over before.
        switch = self.mirror.entries.get(self._keys.switch)
        yield from self._records.apply(changed)
        # While the epoch cannot be read, nothing is released or acknowledged: requests may be held for that very epoch.
        if self._records.is_epoch_readable:
            with self._records.faults.reading(self._keys.switch):
                self._switching.apply(switch)

    async def _current(self) -> GatewayRecord:
        """The record to register: the epoch that is served, and what would not be answered now."""
        await self._gateway.settle()
        unserved = await self._gateway.find_unserved()
        workers = await self._gateway.find_worker_faults()
        return msgspec.structs.replace(
            self._record,
            epoch=self._gateway.fleet.epoch,
            unserved=_named(unserved),
            workers=_named(workers),
            faults=_named(self._records.faults.reasons),
            names=_named({state.name: state.error for state in resolver.states() if state.error}),
        )

    async def _check(self) -> None:
        """The periodic work that needs no change in the store, while a change has left some."""
        while True:
            await self._check_due.wait()
            await asyncio.sleep(_CHECK)
            # Steps of a change that is being applied may hold requests before its end is reached.
            if not (self._is_applying or self._gateway.fleet.holding or self._records.has_vanished):
                self._check_due.clear()
                continue
            try:
                self._records.drop_vanished()
                self._switching.check_hold()
            except Exception as error:
                log.error("a periodic check of the gateway failed unexpectedly", exc_info=error)

    def _report_event(self, what: str, about: str, detail: str) -> None:
        record = EventRecord(time.time(), self._record.name, what, about, detail)
        self._tasks.start(self._write(event(self._keys, record, secrets.token_hex(4))))

    async def _write(self, operation: Put, *compares: Compare) -> None:
        await until_available(lambda: self._store.transact(compares, (operation,), durable=False))


def _all_keys(changes: Iterable[Collection[str] | None]) -> Collection[str] | None:
    """The keys of several changes; None: any."""
    found: set[str] = set()
    for changed in changes:
        if changed is None:
            return None
        found.update(changed)
    return found


def _named(faults: Mapping[str, str]) -> dict[str, str]:
    """As many faults as a record holds."""
    return {name: reason[:_MOST_CHARACTERS] for name, reason in sorted(faults.items())[:_MOST_NAMED]}
