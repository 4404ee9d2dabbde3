"""Stands in a gateway's process between the store and what the gateway serves by.

It registers the gateway, keeps its upstreams, rules and commitments as the store has them, and takes part in strict
switches: it stops admitting before it says so, and lets go only when the store says how the switch ended. While the
store is away the gateway serves on by its last epoch; what waits inside a switch is told after a while. Must never let
a request through that names no version while a switch is held.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from isochrone.control.commitments import commitments
from isochrone.control.events import event
from isochrone.control.keys import Keys
from isochrone.control.records import (
    ANNOUNCED,
    CANCELLED,
    HOLDING,
    AcknowledgementRecord,
    EpochRecord,
    EventRecord,
    GatewayRecord,
    RolloutRecord,
    SwitchRecord,
    WorkerRecord,
    decode,
    encode,
)
from isochrone.control.switch_part import SwitchPart
from isochrone.errors import IsochroneError
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.traffic.rules import GatewayRules
from isochrone.gateway.upstreams import Upstream
from isochrone.store.base import Compare, Delete, Entry, Lease, Put, Store, StoreUnavailable
from isochrone.store.mirror import Mirror

log = structlog.get_logger()

SOURCE = "control plane"


@dataclass(frozen=True, slots=True)
class LinkRules:
    """How long things may take, in seconds."""

    lease: float = 5.0
    #: A switch that is held longer is cancelled, by whichever gateway notices first.
    longest_hold: float = 1.0
    #: Held requests are told after so long, when not even that could be written.
    tell_held: float = 3.0
    #: Looking at what every worker serves may take so long: one may be hanging.
    look: float = 2.0
    #: A worker that vanished from the store, and still answers here, is kept so long: the store may have lost it alone.
    linger: float = 10.0


class GatewayLink:
    """One gateway's. ``read_rules``: the fleet record's gateway rules."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        gateway: Gateway,
        record: GatewayRecord,
        read_rules: Callable[[bytes], GatewayRules],
        rules: LinkRules | None = None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._gateway = gateway
        self._record = record
        self._read_rules = read_rules
        self._rules = rules or LinkRules()
        self.mirror = Mirror(store, keys.prefix)
        self._lease: Lease | None = None
        self._tasks: set[asyncio.Task[None]] = set()
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
        self._registered = False
        gateway.fleet.lead()
        gateway.lost_workers.on_event = self._tell

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
        while not self._registered:
            try:
                await self._register()
            except StoreUnavailable as error:
                log.warning("the gateway cannot register", error=str(error))
                await asyncio.sleep(0.5)
        self.mirror.on_change.append(self._apply)
        self._apply()
        # Their first word on what they serve comes with their health.
        await asyncio.gather(*self._tasks)
        self._run(self._keep())
        self._run(self._look_after())

    async def stop(self) -> None:
        """Says farewell: nobody need wait for this gateway any more. Only when it admits nothing any more itself."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(3):
                await self._farewell()
        except (TimeoutError, StoreUnavailable) as error:
            log.warning("the gateway could not say farewell to the store", error=str(error))
        await self.mirror.stop()
        await self._store.close()

    async def _register(self) -> None:
        """One transaction: whoever commits a strict switch after it has to wait for this gateway too."""
        keys, record = self._keys, self._record
        if self._lease is None or self._lease.lost:
            self._lease = await self._store.grant(self._rules.lease)
        outcome = await self._store.transact(
            (),
            (
                Put(keys.gateway(record.name), encode(self._current()), self._lease.id),
                Put(keys.known_gateway(record.name), record.incarnation.encode()),
                Put(keys.gateway_set, f"{record.name} {record.incarnation}".encode()),
            ),
            # Whoever commits durably after it makes it so.
            durable=False,
        )
        # Nothing is admitted before all that was written earlier has been seen.
        await self.mirror.catch_up(outcome.revision)
        self._registered = True

    async def _farewell(self) -> None:
        keys, record = self._keys, self._record
        known = await self._store.get(keys.known_gateway(record.name))
        if known is not None and known.value.decode() == record.incarnation:
            await self._store.transact(
                (Compare(known.key, known.revision),),
                (
                    Delete(keys.gateway(record.name)),
                    Delete(known.key),
                    Put(keys.gateway_set, f"{record.name} left".encode()),
                ),
            )
        if self._lease is not None:
            await self._lease.revoke()

    def _current(self) -> GatewayRecord:
        return msgspec.structs.replace(self._record, epoch=self._gateway.fleet.epoch)

    async def _keep(self) -> None:
        """Registers again when the lease was lost, and tells which epoch is served."""
        told = -1
        while True:
            before = self.mirror.revision
            try:
                lost = self._lease is None or self._lease.lost
                key = self._keys.gateway(self._record.name)
                if self.mirror.connected and (lost or key not in self.mirror.entries):
                    await self._register()
                    told = -1
                epoch = self._gateway.fleet.epoch
                if epoch != told and self._lease is not None:
                    await self._tell_epoch(key, epoch, self._lease.id)
                    told = epoch
            except StoreUnavailable:
                pass  # the mirror says so in the log
            except Exception as error:
                # A gateway that is not kept registered would be taken for lost.
                log.error("keeping the gateway registered failed unexpectedly", exc_info=error)
                await asyncio.sleep(0.5)
            await self.mirror.changed(before, 0.1)

    async def _tell_epoch(self, key: str, epoch: int, lease: int) -> None:
        """That it is served here; and that it was, for when this gateway is not heard of."""
        seen = f"{self._record.incarnation} {epoch}".encode()
        operations = (Put(key, encode(self._current()), lease), Put(self._keys.seen_epoch(self._record.name), seen))
        await self._store.transact((), operations, durable=False)

    def _tell(self, what: str, about: str, detail: str) -> None:
        """Something happened here that people should know of."""
        record = EventRecord(time.time(), self._record.name, what, about, detail)
        self._run(self._write(event(self._keys, record, secrets.token_hex(4))))

    async def _write(self, operation: Put) -> None:
        while True:
            try:
                await self._store.transact((), (operation,), durable=False)
                return
            except StoreUnavailable:
                await asyncio.sleep(1.0)  # written again, an event is the same one

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
        entries = self.mirror.entries
        try:
            self._apply_rules(entries.get(self._keys.fleet))
            self._apply_members()
            self._apply_epoch(entries.get(self._keys.epoch))
        except (IsochroneError, msgspec.MsgspecError) as error:
            log.error("a record of the control plane makes no sense; what was served stays", error=str(error))
        self._apply_switch(entries.get(self._keys.switch))

    def _apply_rules(self, entry: Entry | None) -> None:
        if entry is None or entry.revision == self._fleet_revision:
            return
        self._fleet_revision = entry.revision
        self._gateway.fleet.configure(self._read_rules(entry.value))

    def _apply_members(self) -> None:
        keys = self._keys
        found = {entry.key: decode(entry.value, WorkerRecord) for entry in self.mirror.under(keys.workers)}
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
        self._epoch_revision = entry.revision
        self._epochs_told += 1
        if self._gateway.fleet.holding:
            # It was looked before the switch was acknowledged; now requests wait.
            self._commit(record, self._epochs_told)
        else:
            self._run(self._look_and_commit(record, self._epochs_told))

    async def _look_and_commit(self, record: EpochRecord, place: int) -> None:
        """Workers have the new versions since a moment ago: requests must not come before that is known here."""
        await self._look({name: model.version for name, model in record.models.items()})
        self._commit(record, place)

    async def _look(self, versions: Mapping[str, str]) -> bool:
        """Looks at what the workers serve until somebody is known to serve each of these; False: nobody was found."""
        ends = time.monotonic() + self._rules.look
        while True:
            await self._gateway.read_indexes(self._rules.look)
            serving = [member.serves or {} for member in self._gateway.fleet.members.values()]
            if all(any(version in each.get(name, ()) for each in serving) for name, version in versions.items()):
                return True
            if time.monotonic() > ends:
                return False
            await asyncio.sleep(0.02)

    def _commit(self, record: EpochRecord, place: int) -> None:
        if place <= self._epoch_served:
            return
        self._epoch_served = place
        if record.epoch <= self._gateway.fleet.epoch:
            log.error("the store went back", epoch=record.epoch, served=self._gateway.fleet.epoch)
        self._gateway.fleet.commit(record.epoch, commitments(record))
        log.info("epoch", epoch=record.epoch, versions={name: model.version for name, model in record.models.items()})

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
            self._run(self._acknowledge(entry, switch))

    async def _acknowledge(self, entry: Entry, switch: SwitchRecord) -> None:
        keys, record = self._keys, self._record
        word = encode(AcknowledgementRecord(switch.phase, record.incarnation))
        rollout = self.mirror.entries.get(keys.rollout(switch.rollout))
        if switch.phase == ANNOUNCED and rollout is not None:
            # What is about to be committed is loaded: once it is, requests wait, and there is no time to look.
            changes = decode(rollout.value, RolloutRecord).changes
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
            self._apply_switch(self.mirror.entries.get(keys.switch))

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
            self._run(self._cancel(entry, held))

    async def _cancel(self, entry: Entry, held: float) -> None:
        switch = decode(entry.value, SwitchRecord)
        if switch.phase != HOLDING:
            return
        reason = f"gateway {self._record.name} held requests for {held:.1f} s without a commit"
        cancelled = msgspec.structs.replace(switch, phase=CANCELLED, reason=reason)
        try:
            await self._store.transact((Compare(entry.key, entry.revision),), (Put(entry.key, encode(cancelled)),))
        except StoreUnavailable:
            pass  # tried again at the next look

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
