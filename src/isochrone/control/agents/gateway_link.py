"""Stands in a gateway's process between the store and what the gateway serves by.

It keeps the gateway's upstreams, rules and commitments as the store has them, and takes part in strict switches: it
stops admitting before it acknowledges, and releases only when the store says how the switch ended and the epoch that
holds then can be read. While the store is away the gateway serves on by its last epoch; requests that wait for a switch
are rejected after a while. A record that cannot be read is reported and changes nothing. Must never let a request
through that names no version while a switch is held.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.agents.commitments import commitments
from isochrone.control.agents.gateway_registration import GatewayRegistration, NameTaken
from isochrone.control.agents.switch_participant import SwitchPart
from isochrone.control.recovery.offers import offer
from isochrone.control.state.events import event
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import (
    ANNOUNCED,
    CANCELLED,
    HOLDING,
    AcknowledgementRecord,
    EpochRecord,
    EventRecord,
    GatewayRecord,
    RolloutRecord,
    SwitchRecord,
    Unreadable,
    WorkerRecord,
    decode,
    encode,
)
from isochrone.errors import IsochroneError
from isochrone.gateway.commitment import Commitment
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.upstreams import Upstream
from isochrone.store.base import Compare, Delete, Entry, Put, Store, StoreUnavailable
from isochrone.store.mirror import Mirror

log = structlog.get_logger()

SOURCE = "control plane"
#: Faults of one kind that a gateway's record names, and characters of each.
_MOST_NAMED, _MOST_CHARACTERS = 50, 300


@dataclass(frozen=True, slots=True)
class LinkRules:
    """How long things may take, in seconds."""

    lease: float = 5.0
    #: A switch that is held longer is cancelled, by whichever gateway notices first.
    longest_hold: float = 1.0
    #: Held requests are told after so long, when not even that could be written.
    tell_held: float = 3.0
    #: Seconds to find a worker that serves what a switch or an epoch brings.
    look: float = 2.0
    #: Seconds for every worker to say what it serves. A worker that hangs is not waited for: it gets no request for a
    #: version that it is not known to serve.
    look_round: float = 0.5
    #: A worker that vanished from the store, and still answers here, is kept so long: the store may have lost it alone.
    linger: float = 10.0


class GatewayLink:
    """One gateway's. ``read_rules``: the fleet record's gateway rules; ``name_taken``: another has its name, so that it
    must stop."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        gateway: Gateway,
        record: GatewayRecord,
        read_rules: Callable[[bytes], GatewayRules],
        rules: LinkRules | None = None,
        name_taken: Callable[[NameTaken], None] = lambda error: None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._gateway = gateway
        self._record = record
        self._read_rules = read_rules
        self._rules = rules or LinkRules()
        self.mirror = Mirror(store, keys.prefix)
        #: By key: records that cannot be read here, and why.
        self._faults: dict[str, str] = {}
        self._registration = GatewayRegistration(store, keys, self.mirror, self._current, self._rules.lease, name_taken)
        self._tasks = BackgroundTasks()
        #: Revisions of what has been applied: nothing is done twice.
        self._epoch_revision = self._fleet_revision = 0
        self._members: tuple[object, ...] = ()
        self._vanished: dict[str, tuple[WorkerRecord, float]] = {}
        self._known: dict[str, WorkerRecord] = {}
        self._part = SwitchPart()
        self._held_since = 0.0
        #: Epochs in the order the store told them, and the place of the one that is served: looking takes a while, and
        #: an earlier one must not come after a later one. By number it would not do: a backup goes back.
        self._epochs_told = self._epoch_served = 0
        #: What is served by.
        self._served: EpochRecord | None = None
        gateway.fleet.lead()
        gateway.lost_workers.on_event = self._tell
        gateway.control_token = record.control_token

    # Life.

    async def start(self) -> None:
        """Returns when the gateway is registered and serves by what is committed; waits for the store if need be."""
        pause = 0.1
        while True:
            try:
                await self.mirror.start()
                break
            except StoreUnavailable as error:
                log.warning("the store does not answer; the gateway is not ready until it does", error=str(error))
                await asyncio.sleep(pause)
                pause = min(2.0, pause * 2)
        await self._registration.start()
        self.mirror.on_change.append(self._apply)
        self._apply()
        # Their first word on what they serve comes with their health.
        await self._tasks.finish()
        self._tasks.start(self._registration.keep())
        self._tasks.start(self._look_after())
        # An epoch that is there and cannot be read: nobody knows what to serve until it is written again.
        while self._keys.epoch in self.mirror.entries and not self._gateway.fleet.epoch:
            await self.mirror.changed(self.mirror.revision, 0.1)

    async def stop(self) -> None:
        """Says farewell: nobody need wait for this gateway any more. Only when it admits nothing any more itself."""
        await self._tasks.end()
        try:
            async with asyncio.timeout(3):
                await self._registration.farewell()
        except (TimeoutError, StoreUnavailable) as error:
            log.warning("the gateway could not say farewell to the store", error=str(error))
        await self.mirror.stop()
        await self._store.close()

    def _current(self) -> GatewayRecord:
        """What the store is to know: the epoch, and what would not be answered now."""
        fleet = self._gateway.fleet
        return msgspec.structs.replace(
            self._record,
            epoch=fleet.epoch,
            unserved=_named(self._gateway.unserved()),
            workers=_named(self._gateway.worker_faults()),
            faults=_named(self._faults),
        )

    def _tell(self, what: str, about: str, detail: str) -> None:
        """Something happened here that people should know of."""
        record = EventRecord(time.time(), self._record.name, what, about, detail)
        self._tasks.start(self._write(event(self._keys, record, secrets.token_hex(4))))

    async def _write(self, operation: Put, *compares: Compare) -> None:
        while True:
            try:
                await self._store.transact(compares, (operation,), durable=False)
                return
            except StoreUnavailable:
                await asyncio.sleep(1.0)  # written again, a record is the same one

    async def _look_after(self) -> None:
        """What must not wait for the store."""
        while True:
            await asyncio.sleep(0.1)
            try:
                self._drop_vanished()
                self._look_at_hold()
            except Exception as error:
                log.error("looking after the gateway failed unexpectedly", exc_info=error)

    # What the store says.

    def _apply(self) -> None:
        """After every change: whole revisions only, so what belongs together is seen together."""
        entries, keys = self.mirror.entries, self._keys
        with self._reading(keys.fleet):
            self._apply_rules(entries.get(keys.fleet))
        self._apply_members()
        with self._reading(keys.epoch):
            self._apply_epoch(entries.get(keys.epoch))
        if keys.epoch in self._faults:
            # What is held may be for the very epoch that cannot be read: nothing is released or acknowledged.
            self._offer()
            return
        with self._reading(keys.switch):
            self._apply_switch(entries.get(keys.switch))

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        """Notes a record that cannot be read; what was served stays."""
        try:
            yield
        except (IsochroneError, msgspec.MsgspecError, ValueError) as error:
            self._fault(key, str(error))
        else:
            self._faults.pop(key, None)

    def _fault(self, key: str, reason: str) -> None:
        if self._faults.get(key) != reason:
            log.error("a record cannot be read; what was served stays", key=key, error=reason)
        self._faults[key] = reason

    def _apply_rules(self, entry: Entry | None) -> None:
        if entry is None or entry.revision == self._fleet_revision:
            return
        self._gateway.fleet.configure(self._read_rules(entry.value))
        self._fleet_revision = entry.revision

    def _apply_members(self) -> None:
        keys = self._keys
        found: dict[str, WorkerRecord] = {}
        for entry in self.mirror.under(keys.workers):
            with self._reading(entry.key):
                found[entry.key] = decode(entry.value, WorkerRecord)
            if entry.key in self._faults and entry.key in self._known:
                # It is there, whatever its record says: what was known of it stands until it is written again.
                found[entry.key] = self._known[entry.key]
        for key in [key for key in self._faults if key not in self.mirror.entries]:
            del self._faults[key]
        drained = {entry.key.removeprefix(keys.drains) for entry in self.mirror.under(keys.drains)}
        self._gateway.draining = self._record.name in drained
        now = time.monotonic()
        for key, record in self._known.items():
            if key not in found:
                self._vanished[key] = (record, now + self._rules.linger)
        for key in found:
            self._vanished.pop(key, None)
        self._known = found
        records = [*found.values(), *(record for record, _ in self._vanished.values())]
        self._set_members([record for record in records if record.name not in drained])

    def _drop_vanished(self) -> None:
        now = time.monotonic()
        overdue = [key for key, (_, until) in self._vanished.items() if now >= until]
        # Nobody is dropped while the store is away: what it does not tell is no news.
        if overdue and self.mirror.connected:
            for key in overdue:
                del self._vanished[key]
            self._apply_members()

    def _set_members(self, records: Sequence[WorkerRecord]) -> None:
        upstreams: dict[str, Upstream] = {}
        for record in records:
            upstream = Upstream(
                record.host,
                record.port,
                record.grpc_port,
                0 if record.kind == "isochrone" else record.metrics_port,
                record.tier,
                record.device,
                record.region,
            )
            upstreams.setdefault(upstream.address, upstream)
        members = tuple(upstreams.values())
        if members != self._members:
            self._members = members
            self._gateway.set_upstreams(SOURCE, members)

    def _apply_epoch(self, entry: Entry | None) -> None:
        if entry is None or entry.revision == self._epoch_revision:
            return
        record = decode(entry.value, EpochRecord)
        committed = commitments(record)
        self._epoch_revision = entry.revision
        self._epochs_told += 1
        if self._gateway.fleet.holding:
            # It was looked before the switch was acknowledged; now requests wait.
            self._commit(record, committed, self._epochs_told)
        else:
            self._tasks.start(self._look_and_commit(record, committed, self._epochs_told))

    def _offer(self) -> None:
        """While nobody can read the epoch: what is served here, to restore it from."""
        offered = offer(self._keys, self.mirror.entries, self._record.name, self._served)
        if offered is not None:
            self._tasks.start(self._write(offered[1], offered[0]))

    async def _look_and_commit(self, record: EpochRecord, committed: Mapping[str, Commitment], place: int) -> None:
        """Workers have the new versions since a moment ago: requests must not come before that is known here."""
        await self._look({name: model.version for name, model in record.models.items()})
        self._commit(record, committed, place)

    async def _look(self, versions: Mapping[str, str]) -> bool:
        """Looks at what the workers serve until somebody is known to serve each of these; False: nobody was found."""
        ends = time.monotonic() + self._rules.look
        while True:
            await self._gateway.read_indexes(min(self._rules.look, self._rules.look_round))
            serving = [member.serves or {} for member in self._gateway.fleet.members.values()]
            if all(any(version in each.get(name, ()) for each in serving) for name, version in versions.items()):
                return True
            if time.monotonic() > ends:
                return False
            await asyncio.sleep(0.02)

    def _commit(self, record: EpochRecord, committed: Mapping[str, Commitment], place: int) -> None:
        if place <= self._epoch_served:
            return
        self._epoch_served, self._served = place, record
        if record.epoch <= self._gateway.fleet.epoch:
            log.error("the store went back", epoch=record.epoch, served=self._gateway.fleet.epoch)
        self._gateway.fleet.commit(record.epoch, committed)
        log.info("epoch", epoch=record.epoch, versions={name: model.version for name, model in record.models.items()})
        if self._keys.epoch in self._faults:
            # Looking takes a while: the record was damaged meanwhile.
            self._offer()

    # Strict switches.

    def _apply_switch(self, entry: Entry | None) -> None:
        fleet = self._gateway.fleet
        switch = decode(entry.value, SwitchRecord) if entry is not None else None
        act = self._part.see(switch, fleet.epoch)
        if act.release:
            held = time.monotonic() - self._held_since
            released = fleet.release()
            log.info("switch over", epoch=fleet.epoch, requests_held=released, held_ms=round(held * 1e3, 2))
        if act.hold:
            # First nothing is let through any more, then this is said.
            fleet.hold(act.hold)
            self._held_since = time.monotonic()
        if act.says and entry is not None and switch is not None:
            self._tasks.start(self._acknowledge(entry, switch))

    async def _acknowledge(self, entry: Entry, switch: SwitchRecord) -> None:
        keys, record = self._keys, self._record
        word = encode(AcknowledgementRecord(switch.phase, record.incarnation))
        rollout = self.mirror.entries.get(keys.rollout(switch.rollout))
        if switch.phase == ANNOUNCED and rollout is not None:
            # What is about to be committed is loaded: once it is, requests wait, and there is no time to look.
            try:
                changes = decode(rollout.value, RolloutRecord).changes
            except Unreadable as error:
                # What it brings is not known, so it cannot be looked for.
                log.error("a switch is announced by a rollout that cannot be read", error=error.message)
                return
            if not await self._look({name: change.version for name, change in changes.items()}):
                log.warning("a switch is announced, and no worker is known here to serve what it brings")
                return
        try:
            # Only while the switch stands as it was seen: a late word must not count for another one.
            # It says nothing to anybody after the machine's end: not waiting for the disk halves the time of a switch.
            await self._store.transact(
                (Compare(entry.key, entry.revision),),
                (Put(keys.acknowledgement(switch.identity, record.name), word),),
                durable=False,
            )
        except StoreUnavailable as error:
            log.warning("a switch could not be acknowledged", switch=switch.identity, error=str(error))
            await asyncio.sleep(0.05)
            self._part.unsaid(switch)
            self._apply()

    def _look_at_hold(self) -> None:
        """A switch whose leader died is not waited for: any gateway may cancel it, unless it was committed."""
        if not self._gateway.fleet.holding:
            return
        held = time.monotonic() - self._held_since
        entry = self.mirror.entries.get(self._keys.switch)
        if held > self._rules.tell_held:
            self._gateway.fleet.refuse_held(
                f"a version is being switched and the store does not say how it ended, for {held:.1f} s now; try again"
            )
        if held > self._rules.longest_hold and entry is not None:
            self._tasks.start(self._cancel(entry, held))

    async def _cancel(self, entry: Entry, held: float) -> None:
        operation: Put | Delete
        try:
            switch = decode(entry.value, SwitchRecord)
        except Unreadable:
            # No leader can commit by it: it is over for everybody.
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
            pass  # tried again at the next look


def _named(faults: Mapping[str, str]) -> dict[str, str]:
    """As much of it as a record holds."""
    return {name: reason[:_MOST_CHARACTERS] for name, reason in sorted(faults.items())[:_MOST_NAMED]}
