"""A sealed store is a store; what others write into the same place is refused, and kept apart from what is absent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isochrone.store.base import Put
from isochrone.store.opening import open_store
from isochrone.store.sealed import SealedStore
from isochrone.store.seals import NO_SEAL, WRONG_SEAL, Seal, refusal
from store_conformance import LIMIT_SECONDS, Place, StoreConformance, mirrored, put, run

SEAL = Seal((b"k" * 32,))
Opened = Callable[[Seal], SealedStore]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(lambda: open_store("sqlite:state/fleet.db", tmp_path, SEAL), "/isochrone/test/", lease_seconds=3)


class TestSealedSqliteStore(StoreConformance):
    pass


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return lambda seal: open_store("sqlite:state/fleet.db", tmp_path, seal)


@pytest.mark.parametrize("size", [3, 100_000])
def test_each_way_of_reading_refuses_what_others_wrote(opened: Opened, size: int) -> None:
    value = b"x" * size

    async def scenario() -> None:
        ours, theirs, none = opened(SEAL), opened(Seal((b"t" * 32,))), opened(Seal())
        async with mirrored(ours, "/f/") as mirror:
            await put(ours, "/f/ours", value)
            await put(theirs, "/f/theirs", value)
            last = await put(none, "/f/none", value)
            assert await mirror.changed(last - 1, LIMIT_SECONDS)
            listed = (await ours.list("/f/")).entries
            for found in (
                mirror.entries,
                listed,
                {key: entry for key in listed if (entry := await ours.get(key)) is not None},
            ):
                assert found["/f/ours"].value == value
                assert found["/f/ours"].is_sealed
                assert refusal(found["/f/theirs"].value) == WRONG_SEAL
                assert refusal(found["/f/none"].value) == NO_SEAL
                assert not found["/f/none"].is_sealed
        # Without a key, everything is read.
        assert {entry.value for entry in (await none.list("/f/")).entries.values()} == {value}
        for store in (ours, theirs, none):
            await store.close()

    run(scenario())


def test_the_seal_can_be_replaced_while_the_store_is_in_use(opened: Opened) -> None:
    async def scenario() -> None:
        store, other = opened(Seal()), opened(SEAL)
        await put(store, "/f/a", b"1")
        store.seal = SEAL
        assert store.seals
        await put(store, "/f/b", b"2")
        found = await other.get("/f/b")
        assert found is not None
        assert found.value == b"2"
        before = await store.get("/f/a")
        assert before is not None
        assert refusal(before.value) == NO_SEAL
        # A condition on what was refused holds: its owner writes it again.
        async with mirrored(store, "/f/") as mirror:
            outcome = await store.transact([], [Put("/f/a", b"1")])
            await mirror.catch_up(outcome.revision)
            assert mirror.entries["/f/a"].value == b"1"
        await store.close()
        await other.close()

    run(scenario())
