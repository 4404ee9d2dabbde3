"""Carries a gateway through strict switches: holds requests, acknowledges, releases, and cancels a stalled switch.

``switch_participant`` decides; this module acts. It stops admitting before it acknowledges, and releases only when the
store says how the switch ended. Must never admit a request that names no version while a switch is held.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.agents.discovery import discover
from isochrone.control.agents.link_rules import LinkRules
from isochrone.control.agents.switch_participant import SwitchParticipant
from isochrone.control.state.codec import Unreadable, decode, encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.rollout_records import (
    ANNOUNCED,
    CANCELLED,
    HOLDING,
    AcknowledgementRecord,
    RolloutRecord,
    SwitchRecord,
)
from isochrone.gateway.gateway import Gateway
from isochrone.store.base import Compare, Delete, Entry, Put, Store, StoreUnavailable
from isochrone.store.mirror import Mirror

log = structlog.get_logger(__name__)


class GatewaySwitching:
    """One gateway's. ``retry``: called when an acknowledgement could not be written and is due again."""

    def __init__(
        self,
        store: Store,
        mirror: Mirror,
        keys: Keys,
        gateway: Gateway,
        record: GatewayRecord,
        rules: LinkRules,
        tasks: BackgroundTasks,
        retry: Callable[[], None],
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._keys = keys
        self._gateway = gateway
        self._record = record
        self._rules = rules
        self._tasks = tasks
        self._retry = retry
        self._participant = SwitchParticipant()
        self._held_since = 0.0

    def apply(self, entry: Entry | None) -> None:
        """``entry``: the switch record; None: no switch is in progress."""
        fleet = self._gateway.fleet
        switch = decode(entry.value, SwitchRecord) if entry is not None else None
        actions = self._participant.observe(switch, fleet.epoch)
        if actions.release:
            held = time.monotonic() - self._held_since
            released = self._gateway.release()
            log.info("switch over", epoch=fleet.epoch, requests_held=released, held_ms=round(held * 1e3, 2))
        if actions.hold:
            # Requests are held before the phase is acknowledged.
            fleet.hold(actions.hold)
            self._held_since = time.monotonic()
        if actions.acknowledge and entry is not None and switch is not None:
            self._tasks.start(self._acknowledge(entry, switch))

    async def _acknowledge(self, entry: Entry, switch: SwitchRecord) -> None:
        keys, record = self._keys, self._record
        acknowledgement = encode(AcknowledgementRecord(switch.phase, record.incarnation))
        rollout = self._mirror.entries.get(keys.rollout(switch.rollout))
        if switch.phase == ANNOUNCED and rollout is not None:
            # The new versions are loaded already. Once the switch is held, requests wait and there is no time to look.
            try:
                changes = decode(rollout.value, RolloutRecord).changes
            except Unreadable as error:
                log.error("a switch is announced by a rollout that cannot be read", error=error.message)
                return
            versions = {name: change.version for name, change in changes.items()}
            if not await discover(self._gateway, versions, self._rules):
                log.warning("a switch is announced, and no worker is known here to serve what it brings")
                return
        try:
            # Conditional on the switch as it was seen: a late acknowledgement must not count for another switch.
            # It means nothing after the machine's end: not waiting for the disk halves the time of a switch.
            await self._store.transact(
                (Compare(entry.key, entry.revision),),
                (Put(keys.acknowledgement(switch.identity, record.name), acknowledgement),),
                durable=False,
            )
        except StoreUnavailable as error:
            log.warning("a switch could not be acknowledged", switch=switch.identity, error=str(error))
            await asyncio.sleep(0.05)
            self._participant.acknowledgement_failed(switch)
            self._retry()

    def check_hold(self) -> None:
        """Cancel a switch that has been held for too long: its leader may have died. A committed one cannot be
        cancelled."""
        if not self._gateway.fleet.holding:
            return
        held = time.monotonic() - self._held_since
        entry = self._mirror.entries.get(self._keys.switch)
        if held > self._rules.reject_held:
            self._gateway.reject_held(
                f"a version is being switched and the store does not say how it ended, for {held:.1f} s now; try again"
            )
        if held > self._rules.longest_hold and entry is not None:
            self._tasks.start(self._cancel(entry, held))

    async def _cancel(self, entry: Entry, held: float) -> None:
        operation: Put | Delete
        try:
            switch = decode(entry.value, SwitchRecord)
        except Unreadable:
            # No leader can commit a switch that it cannot read.
            operation = Delete(entry.key)
        else:
            if switch.phase != HOLDING:
                return
            reason = f"gateway {self._record.name} held requests for {held:.1f} s without a commit"
            cancelled = msgspec.structs.replace(switch, phase=CANCELLED, reason=reason)
            operation = Put(entry.key, encode(cancelled))
        try:
            await self._store.transact((Compare(entry.key, entry.revision),), (operation,))
        except StoreUnavailable:
            pass  # the next check tries again
