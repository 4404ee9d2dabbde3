"""Records that their seals refuse: every reader treats them as records that cannot be read, and presence counts for
nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from isochrone.control.agents.worker_link import Due, due
from isochrone.control.leader.election import Candidate
from isochrone.control.leader.observation import observe
from isochrone.control.requests.decisions import RequestContext
from isochrone.control.requests.processes import drain, undrain
from isochrone.control.rollout.observed_state import Verdict
from isochrone.control.state.codec import Unreadable, encode
from isochrone.control.state.foreign import ForeignRecords, check_seals
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.records import EpochRecord, EventRecord
from isochrone.control.state.view import View
from isochrone.engines.supervision.membership import Membership
from isochrone.engines.supervisor_lease import SupervisorLease, SupervisorRecord
from isochrone.errors import NotFound
from isochrone.store.base import Entry, Put, Store
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store
from isochrone.store.seals import NO_SEAL, WRONG_SEAL, Seal, refused

KEYS = Keys("plant")
CONTEXT = RequestContext("ada", 1.0, "u")
SEAL = Seal((b"k" * 32,))
REFUSED = refused(NO_SEAL)
WORKER = WorkerRecord("w", "10.0.0.1", 8000, 8001, incarnation="5")


def view(records: Mapping[str, bytes]) -> View:
    return View(KEYS, {key: Entry(key, value, number) for number, (key, value) in enumerate(records.items(), 1)})


class NoVerdicts:
    """Nothing has been evaluated."""

    compared: Mapping[str, Verdict] = MappingProxyType({})
    judged: Mapping[str, Verdict] = MappingProxyType({})


@pytest.mark.parametrize(
    "key",
    [
        KEYS.epoch,
        KEYS.leader,
        KEYS.supervisor,
        KEYS.gateway_set,
        KEYS.rollout_number,
        KEYS.known_gateway("g"),
        KEYS.seen_epoch("g"),
        KEYS.drain("w"),
        f"{KEYS.prefix}of-a-later-release",
    ],
)
def test_each_is_a_fault_with_its_reason(key: str) -> None:
    assert [(fault.key, fault.reason.split(";")[0]) for fault in view({key: REFUSED}).faults()] == [(key, NO_SEAL)]
    assert view({key: REFUSED}).is_unreadable(key)
    with pytest.raises(Unreadable):
        view({key: REFUSED}).require(key)


def test_presence_alone_counts_for_nothing() -> None:
    found = view(
        {
            KEYS.leader: REFUSED,
            KEYS.known_gateway("rogue"): REFUSED,
            KEYS.known_gateway("hurt"): REFUSED,
            KEYS.known_gateway("good"): b"7",
            KEYS.gateway("hurt"): encode(GatewayRecord("hurt", "10.0.0.2", 8000)),
            KEYS.seen_epoch("rogue"): REFUSED,
            KEYS.rollout_number: REFUSED,
            KEYS.rollout("r5"): b"{}",
            KEYS.rollout("r" + "9" * 5000): REFUSED,
            KEYS.drain("w"): REFUSED,
        }
    )
    assert found.leader == ""
    # A strict switch does not wait for a gateway that only a forged record names; one that is registered counts.
    assert found.known_gateways == ["good", "hurt"]
    assert found.epochs_seen == {}
    assert found.rollout_number == 5
    assert not found.holds(KEYS.drain("w"))
    assert found.drains == {}
    observed = observe(found, {}, NoVerdicts(), {}, 0.0, 0.0)
    assert observed.known_gateways.keys() == {"good", "hurt"}


def test_a_forged_drain_can_be_replaced_and_ended() -> None:
    records = view({KEYS.drain("w"): REFUSED, KEYS.worker("w"): encode(WORKER)})
    decision = drain(records, "w", CONTEXT)
    assert decision.operations[0].key == KEYS.drain("w")
    assert undrain(records, "w", CONTEXT).operations[0].key == KEYS.drain("w")
    with pytest.raises(NotFound):
        drain(records, "rogue", CONTEXT)


def test_a_worker_writes_its_record_again_and_gives_way_to_no_forgery() -> None:
    assert due(WORKER, 3, Entry(KEYS.worker("w"), REFUSED, 9, 3)) is Due.REGISTER


def test_unsealed_records_are_those_that_were_accepted() -> None:
    entries = {
        "/a": Entry("/a", b"{}", 1, 0, is_sealed=True),
        "/b": Entry("/b", b"{}", 2),
        "/c": Entry("/c", REFUSED, 3),
    }
    assert [entry.key for entry in View(KEYS, entries).unsealed()] == ["/b"]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ({KEYS.epoch: REFUSED, KEYS.fleet: REFUSED}, "have no seal: give the fleet its key with"),
        (
            {KEYS.epoch: REFUSED, KEYS.fleet: refused(WRONG_SEAL)},
            "sealed with another key: name the fleet's key in security.key",
        ),
        ({}, ""),
        ({KEYS.epoch: REFUSED, KEYS.fleet: b"{}"}, ""),
        ({KEYS.epoch: b"{}"}, ""),
    ],
)
def test_a_process_with_another_key_does_not_begin(records: dict[str, bytes], words: str) -> None:
    if not words:
        check_seals(view(records), "sqlite:x")
        return
    with pytest.raises(ForeignRecords, match=words):
        check_seals(view(records), "sqlite:x")


async def forge(path: Path, key: str, value: bytes, lease: int = 0) -> None:
    store = open_store(f"sqlite:{path / 'fleet.db'}")
    assert (await store.transact((), [Put(key, value, lease)])).succeeded
    await store.close()


def with_store(path: Path, scenario: Callable[[Store], Awaitable[None]]) -> None:
    async def run() -> None:
        store = open_store(f"sqlite:{path / 'fleet.db'}", seal=SEAL)
        try:
            async with asyncio.timeout(60):
                await scenario(store)
        finally:
            await store.close()

    asyncio.run(run())


def test_a_forged_leader_keeps_nobody_from_leading(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        await forge(tmp_path, KEYS.leader, b"mallory")
        mirror = Mirror(store, KEYS.prefix)
        await mirror.start()
        candidate = Candidate(store, KEYS, mirror, "c1", 5.0)
        await candidate.campaign()
        assert candidate.leads
        # Once more, also under the leader's own lease: a forged name is never its own.
        held = mirror.entries[KEYS.leader].lease
        await forge(tmp_path, KEYS.leader, b"mallory", held)
        while mirror.entries[KEYS.leader].value != REFUSED:
            await mirror.changed(mirror.revision, 1.0)
        await candidate.campaign()
        assert View(KEYS, mirror.entries).leader == "c1"
        await candidate.resign()
        await mirror.stop()

    with_store(tmp_path, scenario)


def test_a_forged_supervisor_keeps_nobody_from_supervising(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        await forge(tmp_path, KEYS.supervisor, encode(SupervisorRecord("evil", 1)))
        lease = SupervisorLease(store, KEYS, SupervisorRecord("here", 2), 5.0)
        await lease.take(lambda other: None, 0.0)
        entry = await store.get(KEYS.supervisor)
        assert entry is not None
        assert b"here" in entry.value
        await lease.release()

    with_store(tmp_path, scenario)


def test_a_supervisor_drains_over_a_forged_drain(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        await forge(tmp_path, KEYS.drain("w"), encode(EventRecord(0.0, "ada", "drain", "w")))
        membership = Membership(store, KEYS)
        await membership.drain("w")
        entry = await store.get(KEYS.drain("w"))
        assert entry is not None
        assert b"supervisor" in entry.value
        await membership.undrain(["w"])
        assert await store.get(KEYS.drain("w")) is None

    with_store(tmp_path, scenario)


def test_a_keyless_reader_reads_what_is_sealed(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        assert (await store.transact((), [Put(KEYS.epoch, encode(EpochRecord(3)))])).succeeded
        keyless = open_store(f"sqlite:{tmp_path / 'fleet.db'}")
        found = View(KEYS, (await keyless.list(KEYS.prefix)).entries)
        await keyless.close()
        assert found.epoch == EpochRecord(3)
        assert not found.faults()

    with_store(tmp_path, scenario)
