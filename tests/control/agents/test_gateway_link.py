"""A gateway's link with a real store: its name is its own, and what it cannot read changes nothing it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isochrone.clock import SECOND, now_ns
from isochrone.control.agents import gateway_link, gateway_records
from isochrone.control.agents.gateway_link import GatewayLink
from isochrone.control.agents.gateway_registration import NameTaken
from isochrone.control.agents.link_rules import LinkRules
from isochrone.control.state.codec import decode, encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, WaitingRecord
from isochrone.control.state.rollout_records import ANNOUNCED, HOLDING, SwitchRecord
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.requests.request import Request
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.quota_rules import QuotaRules
from isochrone.gateway.traffic.waiting_room import WaitingRoomRules
from isochrone.settings.wire_limits import WireLimits
from isochrone.store.base import Delete, Put
from isochrone.store.leases import KeptLease
from isochrone.store.sqlite.store import SqliteStore

KEYS = Keys("plant")
SECONDS = 60.0
#: Requests are held for ever, and nothing is looked for: the tests say when a switch is over. No lease expires.
RULES = LinkRules(lease=60, longest_hold=3600, reject_held=3600, discovery=0.0)


async def until(look: Callable[[], object]) -> None:
    ends = time.monotonic() + SECONDS
    while not look():
        assert time.monotonic() < ends
        await asyncio.sleep(0.01)


class Led:
    """A gateway without workers, and its link."""

    def __init__(
        self,
        directory: Path,
        name: str = "g",
        incarnation: str = "1",
        rules: LinkRules = RULES,
        read_rules: Callable[[bytes], GatewayRules] = lambda value: GatewayRules(),
    ) -> None:
        self.store = SqliteStore("sqlite:test.db", directory / "test.db")
        self.gateway = Gateway(GatewayRules(), WireLimits())
        self.taken: list[NameTaken] = []
        record = GatewayRecord(name, "127.0.0.1", 8000, incarnation=incarnation, pid=int(incarnation))
        self.link = GatewayLink(self.store, KEYS, self.gateway, record, read_rules, rules, self.taken.append)

    async def __aenter__(self) -> Led:
        await self.link.start()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        await self.link.stop()
        await self.gateway.close()

    async def put(self, key: str, record: msgspec.Struct | bytes) -> None:
        value = record if isinstance(record, bytes) else encode(record)
        outcome = await self.store.transact((), (Put(key, value),))
        await self.link.mirror.catch_up(outcome.revision)

    async def delete(self, key: str) -> None:
        outcome = await self.store.transact((), (Delete(key),))
        await self.link.mirror.catch_up(outcome.revision)

    @property
    def acknowledged(self) -> list[str]:
        return [key for key in self.link.mirror.entries if key.startswith(KEYS.acknowledgements)]

    @property
    def registered(self) -> GatewayRecord:
        return decode(self.link.mirror.entries[KEYS.gateway("g")].value, GatewayRecord)


def run(scenario: Callable[[Path], Awaitable[None]], directory: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS):
            await scenario(directory)

    asyncio.run(main())


def epoch(number: int, version: str) -> EpochRecord:
    return EpochRecord(number, {"m": Assignment(version)})


# Names.


def test_a_name_that_another_gateway_holds_is_refused(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory) as first:
            # It waits as long as its own lease lasts.
            second = Led(directory, incarnation="2", rules=replace(RULES, lease=0.5))
            with pytest.raises(NameTaken, match=r"'g' is in use by the gateway at 127.0.0.1:8000.*--name"):
                await second.link.start()
            await second.stop()
            # The first one has everything it had, also what a switch waits for.
            assert first.link.mirror.entries[KEYS.known_gateway("g")].value == b"1"
            assert first.registered.incarnation == "1"
            assert first.taken == []

    run(scenario, tmp_path)


def test_of_two_that_start_at_once_one_is_registered(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        # The second waits as long as a lease lasts, and the first must not miss its own meanwhile.
        rules = replace(RULES, lease=4)
        both = [Led(directory, incarnation=number, rules=rules) for number in ("1", "2")]
        ends = await asyncio.gather(*(each.link.start() for each in both), return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == ["NameTaken", "NoneType"]
        for each in both:
            await each.stop()

    run(scenario, tmp_path)


def test_the_lease_of_a_dead_one_runs_out_and_its_name_is_free(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        dead = Led(directory)
        lease = await dead.store.grant(0.5)
        old = GatewayRecord("g", "h", 1, incarnation="0")
        await dead.store.transact(
            (), (Put(KEYS.gateway("g"), encode(old), lease.id), Put(KEYS.known_gateway("g"), b"0"))
        )
        # Its process is gone: nobody keeps the lease.
        await dead.store.close()
        async with Led(directory, incarnation="2") as successor:
            assert successor.registered.incarnation == "2"
            assert successor.link.mirror.entries[KEYS.known_gateway("g")].value == b"2"

    run(scenario, tmp_path)


def test_one_whose_name_was_taken_meanwhile_stops(tmp_path: Path) -> None:
    """Its lease was lost for a while: a switch no longer waits for it, so it must not serve."""

    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            other = await led.store.grant(60)
            record = GatewayRecord("g", "h", 1, incarnation="9")
            await led.store.transact((), (Put(KEYS.gateway("g"), encode(record), other.id),))
            await until(lambda: led.taken)
            assert "--name" in led.taken[0].message
            await other.revoke()

    run(scenario, tmp_path)


def test_a_registration_that_was_damaged_is_written_again(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            entries = led.link.mirror.entries
            for key, value in ((KEYS.gateway("g"), b"no JSON"), (KEYS.known_gateway("g"), b"\xff\xfe")):
                await led.put(key, value)
                await until(lambda key=key, value=value: key in entries and entries[key].value != value)
            assert led.registered.incarnation == "1"
            assert entries[KEYS.known_gateway("g")].value == b"1"

    run(scenario, tmp_path)


def test_deregistering_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        led = Led(directory)
        await led.link.start()
        await led.put(KEYS.epoch, epoch(1, "1"))
        await until(lambda: KEYS.seen_epoch("g") in led.link.mirror.entries)
        await led.stop()
        store = SqliteStore("sqlite:test.db", directory / "test.db")
        left = (await store.list(KEYS.prefix)).entries
        await store.close()
        assert set(left) == {KEYS.epoch, KEYS.gateway_set}

    run(scenario, tmp_path)


# Requests that wait.


def test_the_models_whose_requests_wait_are_recorded_under_the_present_lease(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        led = Led(directory)
        await led.link.start()
        entries, key = led.link.mirror.entries, KEYS.waiting_at("g")
        led.gateway.fleet.configure(GatewayRules(ModelRules(waiting_room=WaitingRoomRules(8, SECOND))))
        await led.put(KEYS.epoch, epoch(1, "1"))
        await until(lambda: led.gateway.fleet.epoch)
        request = Request(now_ns())
        request.served = led.gateway.fleet.model("m")
        assert led.gateway.machine.waiting.enter(request, now_ns())
        await until(lambda: key in entries)
        assert decode(entries[key].value, WaitingRecord) == WaitingRecord({"m": 1})
        lost = led.link._registration.lease
        assert isinstance(lost, KeptLease)
        assert entries[key].lease == lost.id
        lost.mark_lost()
        await led.delete(KEYS.gateway("g"))
        await until(lambda: key in entries and entries[key].lease not in (0, lost.id))
        assert entries[KEYS.gateway("g")].lease == entries[key].lease
        await lost.revoke()
        assert key in (await led.store.list(KEYS.prefix)).entries
        led.gateway.machine.waiting.close()
        await led.stop()
        store = SqliteStore("sqlite:test.db", directory / "test.db")
        assert key not in (await store.list(KEYS.prefix)).entries
        await store.close()

    run(scenario, tmp_path)


# Records that cannot be read.


def test_an_epoch_that_cannot_be_read_releases_nothing(tmp_path: Path) -> None:
    """The switch is over for everybody else; this gateway cannot know by what. It holds on, and says so."""

    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            fleet = led.gateway.fleet
            await led.put(KEYS.epoch, epoch(1, "1"))
            await until(lambda: fleet.epoch == 1)
            await led.put(KEYS.switch, SwitchRecord("r1.1", HOLDING, ("m",), 1))
            await until(lambda: fleet.holding)
            # As a commit is written: the epoch and the switch's end in one transaction.
            outcome = await led.store.transact((), (Put(KEYS.epoch, b'{"epoch": "two"}'), Delete(KEYS.switch)))
            await led.link.mirror.catch_up(outcome.revision)
            assert fleet.holding == {"m"}
            assert fleet.epoch == 1
            await until(lambda: KEYS.epoch in led.registered.faults)
            # Written again in a form that can be read: it is served, and what waited goes on.
            await led.put(KEYS.epoch, epoch(2, "2"))
            await until(lambda: fleet.epoch == 2)
            assert not fleet.holding
            assert fleet.committed["m"].version == "2"
            await until(lambda: not led.registered.faults)

    run(scenario, tmp_path)


def test_an_epoch_that_cannot_be_read_acknowledges_nothing(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            await led.put(KEYS.epoch, epoch(1, "1"))
            await until(lambda: led.gateway.fleet.epoch == 1)
            await led.put(KEYS.epoch, b"no JSON")
            await led.put(KEYS.switch, SwitchRecord("r1.1", ANNOUNCED, ("m",), 1))
            await until(lambda: KEYS.epoch in led.registered.faults)
            assert led.acknowledged == []
            assert led.gateway.fleet.epoch == 1
            await led.put(KEYS.epoch, epoch(1, "1"))
            await until(lambda: led.acknowledged)

    run(scenario, tmp_path)


def test_what_is_served_is_offered_while_neither_the_epoch_nor_its_copy_can_be_read(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            await led.put(KEYS.epoch, epoch(1, "1"))
            await until(lambda: led.gateway.fleet.epoch == 1)
            entries = led.link.mirror.entries
            damage = tuple(Put(key, b"no JSON") for key in (KEYS.epoch, KEYS.epoch_copy))
            await led.store.transact((), damage)
            await until(lambda: KEYS.served_epoch("g") in entries)
            assert decode(entries[KEYS.served_epoch("g")].value, EpochRecord) == epoch(1, "1")
            assert led.gateway.fleet.epoch == 1
            # One that starts meanwhile knows nothing, and must not overwrite what others know.
            late = Led(directory, "late", "2")
            starting = asyncio.ensure_future(late.link.start())
            await until(lambda: KEYS.gateway("late") in entries)
            await led.put(KEYS.epoch, epoch(2, "1"))
            await starting
            assert KEYS.served_epoch("late") not in entries
            await until(lambda: (led.gateway.fleet.epoch, late.gateway.fleet.epoch) == (2, 2))
            await late.stop()

    run(scenario, tmp_path)


def test_an_earlier_epoch_that_is_put_back_is_not_followed(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            for number in (1, 2):
                await led.put(KEYS.epoch, epoch(number, str(number)))
            await until(lambda: led.registered.epoch == 2)
            await led.put(KEYS.epoch, epoch(1, "1"))
            await until(lambda: KEYS.epoch in led.registered.faults)
            assert "epoch 1 was put back: this gateway has epoch 2" in led.registered.faults[KEYS.epoch]
            assert led.gateway.fleet.committed["m"].version == "2"
            # Neither does one that starts now: the first one has been served by a later epoch.
            late = Led(directory, "late", "2")
            starting = asyncio.ensure_future(late.link.start())
            await until(lambda: KEYS.gateway("late") in led.link.mirror.entries)
            await until(lambda: late.link.mirror.entries.get(KEYS.epoch))
            assert not starting.done()
            # The one that is served, as it was: nothing changes. A later one: both follow.
            await led.put(KEYS.epoch, epoch(2, "2"))
            await until(lambda: not led.registered.faults)
            await starting
            await led.put(KEYS.epoch, epoch(3, "1"))
            await until(lambda: (led.gateway.fleet.epoch, late.gateway.fleet.epoch) == (3, 3))
            assert {each.gateway.fleet.committed["m"].version for each in (led, late)} == {"1"}
            await late.stop()

    run(scenario, tmp_path)


def test_an_epoch_put_back_while_a_later_one_is_discovered_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            await led.put(KEYS.epoch, epoch(1, "1"))
            await until(lambda: led.gateway.fleet.epoch == 1)
            begun, go_on, discover = asyncio.Event(), asyncio.Event(), gateway_records.discover

            async def slowly(*arguments: Any) -> None:
                begun.set()
                await go_on.wait()
                await discover(*arguments)

            monkeypatch.setattr(gateway_records, "discover", slowly)
            await led.put(KEYS.epoch, epoch(3, "3"))
            await begun.wait()
            await led.put(KEYS.epoch, epoch(2, "2"))
            await until(lambda: KEYS.epoch in led.registered.faults)
            go_on.set()
            await until(lambda: led.registered.epoch == 3)
            assert led.gateway.fleet.committed["m"].version == "3"
            assert "epoch 2 was put back" in led.registered.faults[KEYS.epoch]

    run(scenario, tmp_path)


def test_the_epoch_that_is_served_put_back_over_a_later_one_releases_nothing(tmp_path: Path) -> None:
    """The commit that ends the switch is overwritten before this gateway has read it; the copy tells of it."""

    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            fleet = led.gateway.fleet
            await led.put(KEYS.epoch, epoch(6, "1"))
            await until(lambda: fleet.epoch == 6)
            await led.put(KEYS.switch, SwitchRecord("r1.1", HOLDING, ("m",), 6))
            await until(lambda: fleet.holding)
            later = Put(KEYS.epoch_copy, encode(epoch(7, "2")))
            outcome = await led.store.transact((), (Put(KEYS.epoch, encode(epoch(6, "1"))), later, Delete(KEYS.switch)))
            await led.link.mirror.catch_up(outcome.revision)
            await until(lambda: KEYS.epoch in led.registered.faults)
            assert "the copy of the record has epoch 7" in led.registered.faults[KEYS.epoch]
            assert fleet.holding == {"m"}
            # As the leader restores it.
            await led.put(KEYS.epoch, epoch(8, "2"))
            await until(lambda: fleet.epoch == 8)
            assert not fleet.holding

    run(scenario, tmp_path)


def test_what_a_gateway_serves_is_on_record_when_it_registers_again(tmp_path: Path) -> None:
    """The record that outlives registrations may be older: a backup of the store was restored."""

    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            await led.put(KEYS.epoch, epoch(2, "2"))
            await until(lambda: led.registered.epoch == 2)
            seen = led.link.mirror.entries[KEYS.seen_epoch("g")].value
            await led.store.transact((), (Put(KEYS.seen_epoch("g"), b"1 1"), Delete(KEYS.gateway("g"))))
            entries = led.link.mirror.entries
            await until(lambda: KEYS.gateway("g") in entries and entries[KEYS.seen_epoch("g")].value == seen)
            assert seen == b"1 2"

    run(scenario, tmp_path)


def test_rules_that_cannot_be_read_keep_nobody_from_the_epoch(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        led = Led(directory, read_rules=lambda value: decode(value, GatewayRules))  # type: ignore[type-var]
        await led.link.start()
        await led.put(KEYS.fleet, b"no JSON")
        await led.put(KEYS.epoch, epoch(1, "1"))
        await until(lambda: led.gateway.fleet.epoch == 1)
        await until(lambda: KEYS.fleet in led.registered.faults)
        await led.stop()

    run(scenario, tmp_path)


def test_a_worker_whose_record_is_damaged_stays(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            members = led.gateway.fleet.members
            for name, port in (("w1", 1), ("w2", 2)):
                await led.put(KEYS.worker(name), WorkerRecord(name, "127.0.0.1", port, port))
            await until(lambda: len(members) == 2)
            await led.put(KEYS.worker("w1"), b"no JSON")
            await led.put(KEYS.worker("w3"), b"no JSON")
            await led.put(KEYS.worker("w4"), WorkerRecord("w4", "127.0.0.1", 4, 4))
            await until(lambda: len(members) == 3)
            assert set(members) == {"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:4"}
            await until(lambda: set(led.registered.faults) == {KEYS.worker("w1"), KEYS.worker("w3")})
            await led.delete(KEYS.worker("w3"))
            await until(lambda: set(led.registered.faults) == {KEYS.worker("w1")})

    run(scenario, tmp_path)


def test_only_records_that_changed_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []

    def counting(value: bytes, kind: type[Any]) -> Any:
        record = decode(value, kind)
        if kind is WorkerRecord:
            decoded.append(record.name)
        return record

    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            for number in range(20):
                await led.put(KEYS.worker(f"w{number}"), WorkerRecord(f"w{number}", "127.0.0.1", 9000 + number, 1))
            monkeypatch.setattr(gateway_records, "decode", counting)
            members = dict(led.gateway.fleet.members)
            assert len(members) == 20
            for number in range(5):
                await led.put(KEYS.events + str(number), b"{}")
            assert decoded == []
            again = WorkerRecord("w3", "127.0.0.1", 9003, 1, incarnation="again")
            await led.put(KEYS.worker("w3"), again)
            assert decoded == ["w3"]
            assert led.gateway.fleet.members == members
            await led.put(KEYS.worker("w3"), WorkerRecord("w3", "127.0.0.1", 9103, 1))
            assert set(led.gateway.fleet.members) ^ set(members) == {"127.0.0.1:9003", "127.0.0.1:9103"}
            await led.put(KEYS.drains + "w4", b"")
            assert "127.0.0.1:9004" not in led.gateway.fleet.members
            await led.delete(KEYS.drains + "w4")
            assert "127.0.0.1:9004" in led.gateway.fleet.members

    run(scenario, tmp_path)


def test_standby_workers_are_watched_and_get_nothing(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            await led.put(KEYS.standby("w2"), b"{}")
            for number in (1, 2):
                await led.put(KEYS.worker(f"w{number}"), WorkerRecord(f"w{number}", "127.0.0.1", 9000 + number, 1))
            members = led.gateway.fleet.members
            first, second = (members[f"127.0.0.1:900{number}"] for number in (1, 2))
            assert (first.endpoint.standby, second.endpoint.standby) == (False, True)
            await led.put(KEYS.standby("w1"), b"{}")
            await led.delete(KEYS.standby("w2"))
            assert (first.endpoint.standby, second.endpoint.standby) == (True, False)
            assert list(members.values()) == [first, second], "both are still the same members"

    run(scenario, tmp_path)


def test_it_does_not_start_by_an_epoch_that_cannot_be_read(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        led = Led(directory)
        await led.store.transact((), (Put(KEYS.epoch, b"no JSON"),))
        starting = asyncio.ensure_future(led.link.start())
        await until(lambda: KEYS.gateway("g") in led.link.mirror.entries and led.registered.faults)
        assert not starting.done()
        await led.put(KEYS.epoch, epoch(3, "1"))
        await starting
        assert led.gateway.fleet.epoch == 3
        await led.stop()

    run(scenario, tmp_path)


def test_what_would_not_be_answered_is_in_its_record(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            await led.put(KEYS.worker("w1"), WorkerRecord("w1", "127.0.0.1", 1, 1))
            await led.put(KEYS.epoch, epoch(1, "1"))
            await until(lambda: "m" in led.registered.unserved)
            await until(lambda: "127.0.0.1:1" in led.registered.workers)
            assert "127.0.0.1:1" in led.registered.unserved["m"]

    run(scenario, tmp_path)


# Long changes.


def many(number: int, version: str) -> EpochRecord:
    return EpochRecord(number, {f"m{each}": Assignment(version) for each in range(3000)})


@pytest.mark.interpreted
def test_a_switch_ends_with_its_epoch_however_long_that_is(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            await led.put(KEYS.epoch, many(1, "1"))
            await until(lambda: led.gateway.fleet.epoch == 1)
            await led.put(KEYS.switch, SwitchRecord("r.1", HOLDING, ("m1",), 1))
            await until(lambda: led.gateway.fleet.holding)
            released: list[tuple[int, str]] = []
            release = led.gateway.release

            def releasing() -> int:
                commitment = led.gateway.fleet.committed["m1"]
                released.append((led.gateway.fleet.epoch, commitment.version))
                return release()

            led.gateway.release = releasing  # type: ignore[method-assign]
            outcome = await led.store.transact((), (Put(KEYS.epoch, encode(many(2, "2"))), Delete(KEYS.switch)))
            await led.link.mirror.catch_up(outcome.revision)
            await until(lambda: released)
            assert released == [(2, "2")]

    run(scenario, tmp_path)


def test_changes_are_applied_in_the_order_of_the_store(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            committed: list[int] = []
            commit = led.gateway.fleet.commit

            def committing(epoch: int, *arguments: Any) -> None:
                committed.append(epoch)
                commit(epoch, *arguments)

            led.gateway.fleet.commit = committing  # type: ignore[method-assign]
            for number in range(1, 6):
                # Each is long, and the next one comes before it is applied.
                await led.store.transact((), (Put(KEYS.epoch, encode(many(number, str(number)))),))
            await until(lambda: led.gateway.fleet.epoch == 5)
            assert committed == sorted(committed)
            assert {each.version for each in led.gateway.fleet.committed.values()} == {"5"}

    run(scenario, tmp_path)


def test_workers_that_register_at_once_are_read_a_few_per_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            read: list[str] = []
            per_step: list[int] = []
            apply_worker = gateway_records.GatewayRecords._apply_worker

            def reading(self: Any, key: str, entry: Any) -> bool:
                read.append(key)
                return apply_worker(self, key, entry)

            monkeypatch.setattr(gateway_records.GatewayRecords, "_apply_worker", reading)
            workers = [WorkerRecord(f"w{number:03}", "127.0.0.1", 1, 1, tier=str(number)) for number in range(100)]
            entries = led.link.mirror._entries
            outcome = await led.store.transact((), [Put(KEYS.worker(each.name), encode(each)) for each in workers])
            await led.link.mirror.catch_up(outcome.revision)
            await until(lambda: len(read) >= 100)
            assert sorted(read) == [KEYS.worker(each.name) for each in workers]
            assert len(entries) >= 100
            # The same by hand: how many each step reads.
            read.clear()
            for _ in led.link._records.apply([KEYS.worker(each.name) for each in workers]):
                per_step.append(len(read))
                read.clear()
            assert max(per_step) <= gateway_records._WORKERS_PER_TURN

    run(scenario, tmp_path)


def test_a_fault_while_records_are_applied_delays_them_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory) as led:
            apply = led.link._records.apply
            faults = 0

            def faulty(changed: Any = None) -> Any:
                nonlocal faults
                if not faults:
                    faults += 1
                    raise KeyError("a fault of ours")
                return apply(changed)

            monkeypatch.setattr(led.link._records, "apply", faulty)
            await led.put(KEYS.epoch, epoch(1, "1"))
            await until(lambda: led.gateway.fleet.epoch == 1)
            assert faults == 1
            await led.put(KEYS.epoch, epoch(2, "2"))
            await until(lambda: led.gateway.fleet.epoch == 2)

    monkeypatch.setattr(gateway_link, "_AGAIN", 0.01)
    run(scenario, tmp_path)


# Quotas.


def test_registered_gateways_divide_the_quotas(tmp_path: Path) -> None:
    """Whatever a caller does, gateways that know of each other grant the limit together."""

    def granted(led: Led, caller: bytes = b"token:rogue") -> int:
        (quotas,) = led.gateway.fleet.quotas
        return sum(quotas.take(caller, 0, now_ns()) is None for _ in range(50))

    async def scenario(directory: Path) -> None:
        rules = GatewayRules(quota=QuotaRules(rate=1e-6, burst=12))
        async with Led(directory, read_rules=lambda value: rules) as first:
            await first.put(KEYS.fleet, b"any")
            async with Led(directory, name="h", incarnation="2", read_rules=lambda value: rules) as second:
                await until(lambda: len(first.link.mirror.under(KEYS.gateways)) == 2)
                await first.link.mirror.catch_up(second.link.mirror.revision)
                await until(lambda: second.gateway.fleet.quotas)
                assert (granted(first), granted(second)) == (6, 6)
            # It has left: all of the limit is the first one's. What was used up stays used up.
            numbers = iter(range(10_000))
            await until(lambda: granted(first, b"token:%d" % next(numbers)) == 12)
            assert granted(first) == 0

    run(scenario, tmp_path)
