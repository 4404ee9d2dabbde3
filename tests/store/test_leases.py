"""When a lease counts as lost: by the store's answer or by the holder's clock, whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from isochrone.clock import SECOND
from isochrone.store.base import StoreUnavailable
from isochrone.store.leases import KeptLease
from store_conformance import run, until

#: Short, so that renewals follow each other quickly; the clock that decides is the test's.
SECONDS = 0.006


class Holder:
    """Answers renewals from a list, and counts them; then says nothing is there."""

    def __init__(self, answers: list[bool]) -> None:
        self.now_ns = 0
        self.renewals = 0
        self.revoked: list[int] = []
        self._answers: Iterator[bool] = iter(answers)
        self.lease = KeptLease(7, SECONDS, 0, self._renew, self._revoke, lambda: self.now_ns)

    def lost(self) -> bool:
        return self.lease.lost

    async def _renew(self, identity: int) -> bool:
        assert identity == 7
        self.renewals += 1
        try:
            return next(self._answers)
        except StopIteration:
            raise StoreUnavailable("away") from None

    async def _revoke(self, identity: int) -> None:
        self.revoked.append(identity)
        raise StoreUnavailable("away")


def test_the_store_says_it_has_ended() -> None:
    async def scenario() -> None:
        holder = Holder([True, True, False])
        await until(holder.lost, "the third renewal is refused")
        assert holder.renewals == 3

    run(scenario())


def test_the_store_is_away_for_longer_than_it_lasts() -> None:
    async def scenario() -> None:
        holder = Holder([])
        await until(lambda: holder.renewals > 3, "it is tried again")
        assert holder.lease.error == "away"
        holder.now_ns = int(SECONDS * SECOND) - 1
        assert not holder.lost()
        holder.now_ns += 1
        assert holder.lost()
        # It stays so, whatever the clock or a late answer says.
        holder.now_ns = 0
        assert holder.lost()
        await holder.lease.stop_keeping()

    run(scenario())


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    async def scenario() -> None:
        holder = Holder([True])
        holder.now_ns = half = int(SECONDS * SECOND / 2)
        await until(lambda: holder.renewals > 1, "the first renewal has been answered")
        holder.now_ns = half + int(SECONDS * SECOND) - 1
        assert not holder.lost()
        holder.now_ns += 1
        assert holder.lost()
        await holder.lease.stop_keeping()

    run(scenario())


def test_revoking_is_no_loss_and_needs_no_store() -> None:
    async def scenario() -> None:
        holder = Holder([True] * 100)
        await holder.lease.revoke()
        await holder.lease.revoke()
        assert holder.revoked == [7]
        holder.now_ns = 10 * SECOND
        holder.lease.mark_lost()
        assert not holder.lost()
        renewals = holder.renewals
        await asyncio.sleep(SECONDS)
        assert holder.renewals == renewals

    run(scenario())
