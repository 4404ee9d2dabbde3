"""The OpenID providers of an access file: whose signed tokens prove an identity.

Names and groups of a provider's callers carry the provider's name: what one provider says of a caller never counts as
another's word, or as that of an API token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from isochrone.background_tasks import BackgroundTasks
from isochrone.errors import Unauthenticated
from isochrone.secure.access.identity import ANONYMOUS, Identity

if TYPE_CHECKING:
    from isochrone.secure.oidc.keys import KeySource
    from isochrone.secure.oidc.settings import Provider

_UNKNOWN = "the token is not known here"
#: A signed token has three segments.
_DOTS = 2


class Proof(NamedTuple):
    """What a credential proves."""

    identity: Identity
    #: Why it proves nothing; "": it does.
    refusal: str = ""
    #: A key is being fetched that may change this.
    is_open: bool = False


class Providers:
    """In the event loop that starts it."""

    def __init__(self, settings: Mapping[str, Provider], fetched: Callable[[], None] = lambda: None) -> None:
        """``fetched`` is called after each fetch that a token caused, whether it succeeded or not."""
        self._fetched = fetched
        #: Those that are asked for keys because of a token.
        self._asked: set[KeySource] = set()
        self._sources: dict[str, KeySource] = {}
        self._known: dict[str, object] = {}
        self._tasks = BackgroundTasks()
        self._is_running = False
        self.replace(settings)

    async def start(self) -> None:
        self._is_running = True
        for source in self._sources.values():
            await source.start()

    async def stop(self) -> None:
        self._is_running = False
        await self._tasks.end()
        for source in self._sources.values():
            await source.stop()

    def replace(self, settings: Mapping[str, Provider]) -> None:
        """These are the providers from now on; one that has not changed keeps its keys."""
        before, self._sources = self._sources, {}
        for name, provider in settings.items():
            kept = before.get(name)
            if kept is not None and kept.provider == provider:
                self._sources[name] = before.pop(name)
                continue
            from isochrone.secure.oidc.keys import KeySource  # without providers nobody needs the library

            self._sources[name] = KeySource(provider)
            if self._is_running:
                self._tasks.start(self._sources[name].start())
        for source in before.values():
            if self._is_running:
                self._tasks.start(source.stop())

    def keys_changed(self) -> bool:
        """Whether a provider has other keys than at the last call: tokens have to be verified again."""
        keys: dict[str, object] = {name: source.verifier.keys for name, source in self._sources.items()}
        same = keys.keys() == self._known.keys() and all(keys[name] is self._known[name] for name in keys)
        self._known = keys
        return not same

    def identify(self, token: str, now: float) -> Proof:
        """The caller that a signed token names, or why it proves none."""
        if token.count(".") != _DOTS or not self._sources:
            return Proof(ANONYMOUS, _UNKNOWN)
        reasons = []
        is_open = False
        for name, source in self._sources.items():
            try:
                claims = source.verifier.verify(token, now)
            except Unauthenticated as error:
                reasons.append(error.message if len(self._sources) == 1 else f"{name}: {error.message}")
                is_open |= self._fetches_for(source, error)
                continue
            groups = frozenset(f"{name}/{group}" for group in claims.groups)
            return Proof(Identity(f"oidc:{name}/{claims.name}", groups, claims.expires))
        return Proof(ANONYMOUS, "; ".join(reasons), is_open)

    def _fetches_for(self, source: KeySource, error: Unauthenticated) -> bool:
        """Whether the key that a token names is being fetched; the source limits how often it asks for keys."""
        from isochrone.secure.oidc.key_set import UnknownKey

        if not (isinstance(error, UnknownKey) and self._is_running and source.wants_keys()):
            return False
        if source not in self._asked:
            self._asked.add(source)
            self._tasks.start(self._refresh(source))
        return True

    async def _refresh(self, source: KeySource) -> None:
        try:
            await source.refresh()
        finally:
            self._asked.discard(source)
        self._fetched()
