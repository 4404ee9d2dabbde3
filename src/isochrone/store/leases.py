"""Renews a lease in the background, and knows locally when it must have expired.

The holder counts from before each renewal was sent, so it never considers its lease alive for longer than the store
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from isochrone.clock import SECOND
from isochrone.store.base import Lease, StoreUnavailable
from isochrone.store.machine_clock import boottime_ns

#: Shares of the lease until the next renewal, and until the retry of a failed one.
_RENEW_AFTER, _RETRY_AFTER = 1 / 3, 1 / 12


class KeptLease(Lease):
    """``renew`` returns False if the lease has ended. Must be created on a running loop."""

    def __init__(
        self,
        identity: int,
        seconds: float,
        granted_ns: int,
        renew: Callable[[int], Awaitable[bool]],
        revoke: Callable[[int], Awaitable[None]],
        now_ns: Callable[[], int] = boottime_ns,
    ) -> None:
        self.id, self.seconds = identity, seconds
        self._renew, self._revoke = renew, revoke
        self._now_ns = now_ns
        self._ends_ns = granted_ns + int(seconds * SECOND)
        self._lost = self._revoked = False
        self._keeper = asyncio.create_task(self._keep(), name=f"lease-{identity}")

    @property
    def lost(self) -> bool:
        # It stays lost: a caller may have written the keys again under another lease since.
        if not self._lost and not self._revoked and self._now_ns() >= self._ends_ns:
            self._lost = True
        return self._lost

    def mark_lost(self) -> None:
        """The store has reported that it ended."""
        if not self._revoked:
            self._lost = True

    async def revoke(self) -> None:
        if self._revoked:
            return
        self._revoked = True
        await self.stop_keeping()
        try:
            await self._revoke(self.id)
        except StoreUnavailable:
            # It expires by itself.
            pass

    async def stop_keeping(self) -> None:
        """Stop renewing it: it expires, or ends by ``revoke``."""
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)

    async def _keep(self) -> None:
        pause = self.seconds * _RENEW_AFTER
        while not self.lost:
            await asyncio.sleep(pause)
            sent_ns = self._now_ns()
            try:
                if not await self._renew(self.id):
                    self.mark_lost()
                    return
            except StoreUnavailable as error:
                self.error = error.message
                pause = self.seconds * _RETRY_AFTER
                continue
            self.error = ""
            self._ends_ns = max(self._ends_ns, sent_ns + int(self.seconds * SECOND))
            pause = self.seconds * _RENEW_AFTER
