"""Random histories of two openers of one SQLite file against a plain dictionary: the model of what a store is."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from isochrone.clock import SECOND
from isochrone.store.base import Changes, Compacted, Compare, Delete, Entry, Lease, LeaseEnded, Put
from isochrone.store.machine_clock import MachineClock
from isochrone.store.mirror import Mirror
from isochrone.store.sqlite.store import SqliteStore

KEYS = st.sampled_from(["/f/a", "/f/b", "/f/b/c", "/g/a"])
VALUES = st.binary(max_size=4)
OPENERS = st.integers(0, 1)
#: Far longer than a test takes, so that no renewal happens; only the test's own clock ends them.
LEASE_SECONDS = 3600


class StoreHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # In memory if there is such a place: hundreds of small transactions, each of which waits for the disk.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.directory = Path(tempfile.mkdtemp(prefix="isochrone-store-", dir=memory))
        self.now_ns = 1
        self.runner = asyncio.Runner()
        # Few deletions are kept, so that the mirror's watch is also told to start over.
        self.stores = [self.runner.run(self._open()) for _ in range(2)]
        self.mirror = Mirror(self.stores[1], "/f/")
        self.runner.run(self.mirror.start())
        self.entries: dict[str, Entry] = {}
        self.revision = 0
        self.leases: list[tuple[Lease, int]] = []
        self.granted_by: dict[int, SqliteStore] = {}
        #: After the store that granted them was closed; and when they end by themselves.
        self.revoked_in_vain: list[tuple[int, int]] = []

    async def _open(self) -> SqliteStore:
        clock = MachineClock("this boot", lambda: self.now_ns)
        return SqliteStore("sqlite:model.db", self.directory / "model.db", clock, kept_deletions=3)

    def alive(self) -> list[Lease]:
        return [lease for lease, ends in self.leases if ends > self.now_ns]

    def end(self, leases: set[int]) -> None:
        gone = [key for key, entry in self.entries.items() if entry.lease in leases]
        for key in gone:
            del self.entries[key]
        self.revision += bool(gone)

    @rule(
        opener=OPENERS,
        compared=st.dictionaries(KEYS, st.sampled_from(["right", "absent", "stale"]), max_size=2),
        operations=st.dictionaries(KEYS, st.none() | VALUES, min_size=1, max_size=3),
        leased=st.booleans(),
    )
    def transact(
        self, opener: int, compared: dict[str, str], operations: dict[str, bytes | None], leased: bool
    ) -> None:
        there = {key: self.entries[key].revision if key in self.entries else 0 for key in compared}
        compares = [
            Compare(key, {"right": there[key], "absent": 0, "stale": max(there[key] - 1, 0)}[kind])
            for key, kind in compared.items()
        ]
        # The last one granted; it may have ended.
        lease = self.leases[-1][0].id if leased and self.leases else 0
        asked = [Delete(key) if value is None else Put(key, value, lease) for key, value in operations.items()]
        self.check_transaction(opener, compares, asked)

    @rule(opener=OPENERS, key=KEYS, value=VALUES, leased=st.booleans())
    def put(self, opener: int, key: str, value: bytes, leased: bool) -> None:
        alive = self.alive()
        self.check_transaction(opener, [], [Put(key, value, alive[-1].id if leased and alive else 0)])

    @rule(opener=OPENERS, keys=st.sets(KEYS, min_size=1))
    def delete(self, opener: int, keys: set[str]) -> None:
        self.check_transaction(opener, [], [Delete(key) for key in sorted(keys)])

    def check_transaction(self, opener: int, compares: list[Compare], asked: Sequence[Put | Delete]) -> None:
        holds = all(
            compare.revision == (self.entries[compare.key].revision if compare.key in self.entries else 0)
            for compare in compares
        )
        leases = {operation.lease for operation in asked if isinstance(operation, Put)} - {0}
        if holds and leases - {lease.id for lease in self.alive()}:
            with pytest.raises(LeaseEnded):
                self.runner.run(self.stores[opener].transact(compares, asked))
            return
        outcome = self.runner.run(self.stores[opener].transact(compares, asked))
        assert outcome.succeeded == holds
        if holds and any(isinstance(operation, Put) or operation.key in self.entries for operation in asked):
            self.revision += 1
            for operation in asked:
                if isinstance(operation, Put):
                    self.entries[operation.key] = Entry(operation.key, operation.value, self.revision, operation.lease)
                else:
                    self.entries.pop(operation.key, None)
        assert outcome.revision == self.revision

    @rule(opener=OPENERS, keys=st.sets(KEYS, max_size=3))
    def hold(self, opener: int, keys: set[str]) -> None:
        lease = self.runner.run(self.stores[opener].grant(LEASE_SECONDS))
        self.leases.append((lease, self.now_ns + LEASE_SECONDS * SECOND))
        self.granted_by[lease.id] = self.stores[opener]
        self.check_transaction(opener, [], [Put(key, b"held", lease.id) for key in sorted(keys)])

    @rule(index=st.integers(0, 3))
    def revoke(self, index: int) -> None:
        if index < len(self.leases):
            lease, ends = self.leases.pop(index)
            self.runner.run(lease.revoke())
            if self.granted_by[lease.id] in self.stores:
                self.end({lease.id})
            else:
                self.revoked_in_vain.append((lease.id, ends))

    @rule(part=st.sampled_from([0.4, 1.1]))
    def time_passes(self, part: float) -> None:
        self.now_ns += int(part * LEASE_SECONDS * SECOND)
        expiring = [*((lease.id, ends) for lease, ends in self.leases), *self.revoked_in_vain]
        self.end({identity for identity, ends in expiring if ends <= self.now_ns})
        assert all(lease.lost == (ends <= self.now_ns) for lease, ends in self.leases)

    @rule(opener=OPENERS)
    def open_again(self, opener: int) -> None:
        if opener == 0:
            self.runner.run(self.stores[0].close())
            self.stores[0] = self.runner.run(self._open())
            # Nobody keeps its leases any more, and in this test's time nobody has to.

    @rule(key=KEYS)
    def watch_from_the_start(self, key: str) -> None:
        """One who watches only now is told what there is, unless it is forgotten what there was."""

        async def first() -> Changes | None:
            try:
                return await anext(self.stores[0].watch(key, 0))
            except Compacted:
                return None

        under = {name: entry for name, entry in self.entries.items() if name.startswith(key)}
        if under:
            changes = self.runner.run(first())
            assert changes is None or {entry.key: entry for entry in changes.written} == under
            assert changes is None or not set(changes.deleted) & set(under)

    @invariant()
    def everybody_sees_the_same(self) -> None:
        under = {key: entry for key, entry in self.entries.items() if key.startswith("/f/")}
        for store in self.stores:
            snapshot = self.runner.run(store.list("/f/"))
            assert (snapshot.entries, snapshot.revision) == (under, self.revision)
        assert self.runner.run(self.stores[0].get("/g/a")) == self.entries.get("/g/a")
        self.runner.run(self.mirror.catch_up(self.revision))
        assert self.mirror.entries == under

    def teardown(self) -> None:
        self.runner.run(self.mirror.stop())
        for store in self.stores:
            self.runner.run(store.close())
        self.runner.close()
        shutil.rmtree(self.directory)


TestStoreHistory = StoreHistory.TestCase
TestStoreHistory.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
