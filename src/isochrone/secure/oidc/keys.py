"""Keeps a provider's keys fresh for its ``Verifier``: fetched at intervals, and once more for a token with a new key.

While the provider does not answer, the last keys remain, up to ``Provider.max_age_seconds``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from isochrone.secure.oidc.discovery import NotAProvider, discovery_url, read_discovery
from isochrone.secure.oidc.fetching import Fetcher, FetchFailed, fetcher
from isochrone.secure.oidc.kept_keys import KeptKeys, NotKept
from isochrone.secure.oidc.key_set import KeySet, UnusableKeys, read_key_set
from isochrone.secure.oidc.schedule import Schedule
from isochrone.secure.oidc.settings import Provider
from isochrone.secure.oidc.verifier import Verifier

log = structlog.get_logger(__name__)


class KeySource:
    """The keys of one provider, in the event loop that starts it."""

    def __init__(
        self,
        provider: Provider,
        cache: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """``cache``: a file for the last keys, in a directory that only this user can write to."""
        self.provider = provider
        self.verifier = Verifier(provider)
        #: Why the last fetch failed; "": it did not.
        self.failure = ""
        self._kept = KeptKeys(cache, provider.issuer) if cache is not None else None
        self._clock = clock
        self._wall_clock = wall_clock
        self._schedule = Schedule(provider.refresh_seconds)
        self._fetching: asyncio.Task[bool] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        #: Set when the next regular fetch may be due earlier than it was.
        self._moved = asyncio.Event()
        #: As it was fetched last.
        self._document: dict[str, Any] | None = None

    async def start(self) -> None:
        """Return when keys are at hand, or the first attempt to fetch them has failed. A server starts without them."""
        if self._kept is not None:
            self._read_kept(self._kept)
        first = self._fetch()
        if self.verifier.keys is None:
            await asyncio.wait([first])
        self._refreshing = asyncio.create_task(self._refresh_for_good(), name=f"keys of {self.provider.issuer}")

    async def stop(self) -> None:
        tasks = [task for task in (self._refreshing, self._fetching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def refresh(self) -> bool:
        """After ``UnknownKey``: whether keys were fetched, so that verifying again may help.

        All callers wait for one fetch, and within ten seconds of its beginning they cause no other.
        """
        if self._is_fetching():
            assert self._fetching is not None
            return await asyncio.shield(self._fetching)
        if not self._schedule.admits(self._clock()):
            return False
        return await asyncio.shield(self._fetch(is_asked=True))

    def wants_keys(self) -> bool:
        """Whether keys are being fetched, or ``refresh`` would fetch them. If not, the next fetch is as soon as
        tokens may cause one: the token that is refused now is accepted then, if its key exists."""
        if self._is_fetching() or self._schedule.admits(self._clock()):
            return True
        if self._schedule.hasten():
            self._moved.set()
        return False

    def _is_fetching(self) -> bool:
        return self._fetching is not None and not self._fetching.done()

    def _fetch(self, *, is_asked: bool = False) -> asyncio.Task[bool]:
        self._schedule.started(self._clock(), is_asked=is_asked)
        self._fetching = asyncio.create_task(self._fetch_once(), name=f"fetch of keys of {self.provider.issuer}")
        return self._fetching

    async def _refresh_for_good(self) -> None:
        while True:
            if self._fetching is not None and not self._fetching.done():
                await asyncio.wait([self._fetching])
            self._moved.clear()
            left = self._schedule.due - self._clock()
            if left > 0:
                # Not ``wait_for``, which loses a cancellation that comes together with the event (Python 3.11).
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._moved.wait()
            else:
                await asyncio.wait([self._fetch()])

    async def _fetch_once(self) -> bool:
        fetched = False
        try:
            async with fetcher(self.provider) as provider:
                document = await self._key_document(provider)
            keys = self._take(document)
            fetched = True
            self._keep(document, keys)
            self._report("")
        except (FetchFailed, NotAProvider, UnusableKeys) as error:
            self._report(str(error))
        finally:
            self._schedule.ended(self._clock(), fetched=fetched)
            # A fetch that a token caused and that failed is tried again earlier than the next one was due.
            self._moved.set()
        return fetched

    def _take(self, document: dict[str, Any]) -> KeySet:
        keys = self.verifier.keys
        if keys is not None and document == self._document:
            # The same object: no token has to be verified again.
            keys.fetched = self._wall_clock()
        else:
            keys = self.verifier.keys = read_key_set(document, self._wall_clock())
            self._document = document
        return keys

    async def _key_document(self, provider: Fetcher) -> dict[str, Any]:
        found = read_discovery(self.provider, await provider.get(discovery_url(self.provider)))
        return await provider.get(found.jwks_uri)

    def _keep(self, document: dict[str, Any], keys: KeySet) -> None:
        if self._kept is not None:
            try:
                self._kept.write(document, keys.fetched)
            except NotKept as error:
                log.warning("keys of the OpenID provider not kept", issuer=self.provider.issuer, reason=str(error))

    def _read_kept(self, kept: KeptKeys) -> None:
        try:
            self.verifier.keys = kept.read(self._wall_clock())
        except NotKept as error:
            if not error.absent:
                log.warning("kept keys of the OpenID provider not read", issuer=self.provider.issuer, reason=str(error))

    def _report(self, failure: str) -> None:
        """Log changes alone: an outage of hours is one line."""
        if failure and failure != self.failure:
            log.warning("keys of the OpenID provider not fetched", issuer=self.provider.issuer, reason=failure)
        elif self.failure and not failure:
            log.info("keys of the OpenID provider fetched again", issuer=self.provider.issuer)
        self.failure = failure
