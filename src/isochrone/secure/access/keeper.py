"""Turns credentials into grants, and follows the access file and the keys of providers while the server runs.

A file that cannot be read, or is wrong, changes nothing: the last good one stays in force, and the log says why. The
process of a fleet has no file: ``adopt`` gives it the rules of the store, and until then all but health is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from weakref import WeakSet

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.errors import ConfigError
from isochrone.secure.access.document import Access, load_access, pending_access
from isochrone.secure.access.grants import Evidence, Grant
from isochrone.secure.access.held import LONGEST_SECONDS, MOST_HELD, HeldRequests
from isochrone.secure.access.identity import ANONYMOUS, Identity
from isochrone.secure.access.internal import CONTROLLER, GATEWAY, POLICY, InternalCallers
from isochrone.secure.access.policy import Policy
from isochrone.secure.access.providers import Proof, Providers
from isochrone.secure.access.tokens import LONGEST, digest_of

log = structlog.get_logger(__name__)

#: Seconds between two looks at the file and at what has expired.
INTERVAL = 1.0
#: Credentials that are remembered; strangers can send any number.
_MOST_REMEMBERED = 10_000
_SCHEME = b"bearer "


class AccessKeeper:
    """The access rules of one server. ``clock``: seconds since 1970."""

    def __init__(
        self, path: Path | None, clock: Callable[[], float] = time.time, internal: InternalCallers | None = None
    ) -> None:
        """``path`` None: the rules come by ``adopt``. ``internal``: recognises the fleet's own processes; None: there
        are none. Raises ``SettingsError`` if the file is wrong."""
        self.path = path
        self._clock = clock
        self._internal = internal
        self._stamp = None if path is None else _stamp(path)
        self.access: Access = pending_access() if path is None else load_access(path)
        self._providers = Providers(self.access.providers, self._keys_fetched)
        self._grants: dict[Evidence, Grant] = {}
        #: All that are in use, remembered or not: heads of messages keep theirs.
        self._in_use: WeakSet[Grant] = WeakSet()
        #: Grants whose keys are being fetched, and the requests that wait for them.
        self._open: list[Grant] = []
        self._held = HeldRequests()
        self._longest: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks()
        #: The last error of the file; "": it is in force as it is.
        self.fault = ""

    async def start(self) -> None:
        """Return when the keys of providers are at hand, or could not be fetched."""
        await self._providers.start()
        self._tasks.start(self._follow())

    async def stop(self) -> None:
        await self._tasks.end()
        await self._providers.stop()
        self._decide()

    def grant(self, credential: bytes, peer: tuple[str, ...] = (), attestation: bytes = b"") -> Grant:
        """The grant for a value of ``Authorization`` (b"": the caller sent none), or else for the names in the
        certificate that the caller's connection has shown. ``attestation``: the value of ``internal.ON_BEHALF``."""
        evidence = Evidence(credential, () if credential or attestation else peer, attestation)
        grant = self._grants.get(evidence)
        if grant is None:
            proof = self._identify(evidence)
            grant = Grant(evidence, proof.identity, self._policy_of(proof.identity), proof.refusal)
            if proof.is_open and len(self._open) < MOST_HELD:
                self._leave_open(grant)
            self._in_use.add(grant)
            if len(self._grants) >= _MOST_REMEMBERED:
                self._grants.clear()
            self._grants[evidence] = grant
        return grant

    def adopt(self, access: Access) -> None:
        """These are the rules from now on, for open connections and streams too."""
        self.access = access
        self._providers.replace(access.providers)
        self._renew(everything=True)

    def look(self) -> None:
        """Read the file again if it changed; renew the grants in use whose reason has changed or expired."""
        keys_changed = self._providers.keys_changed()
        self._renew(everything=self._read_again() or keys_changed)

    def _renew(self, *, everything: bool) -> None:
        now = self._clock()
        for grant in list(self._in_use):
            if everything or (not grant.refusal and grant.identity.expires <= now):
                proof = self._identify(grant.evidence)
                grant.renew(proof.identity, self._policy_of(proof.identity), proof.refusal)

    async def decided(self, grant: Grant) -> None:
        """Return when no key is being fetched for it any more."""
        decided = asyncio.Event()
        if grant.held is None or not grant.held.hold(decided.set):
            return
        await decided.wait()

    def _leave_open(self, grant: Grant) -> None:
        grant.held = self._held
        self._open.append(grant)
        if self._longest is None:
            self._longest = asyncio.get_running_loop().call_later(LONGEST_SECONDS, self._decide)

    def _keys_fetched(self) -> None:
        self.look()
        self._decide()

    def _decide(self) -> None:
        """What is refused now is refused: waiting requests go on."""
        if self._longest is not None:
            self._longest.cancel()
            self._longest = None
        grants, self._open = self._open, []
        for grant in grants:
            grant.held = None
        held, self._held = self._held, HeldRequests()
        held.release()

    def _read_again(self) -> bool:
        """Whether another file is in force from now on."""
        if self.path is None or (stamp := _stamp(self.path)) == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.access = load_access(self.path)
        except (ConfigError, OSError) as error:
            self.fault = str(error)
            log.error("the access file cannot be read; the last good one stays in force", reason=self.fault)
            return False
        self.fault = ""
        self._providers.replace(self.access.providers)
        log.info("access file read", path=str(self.path))
        return True

    def _policy_of(self, identity: Identity) -> Policy:
        return POLICY if identity is CONTROLLER or identity is GATEWAY else self.access.policy

    def _identify(self, evidence: Evidence) -> Proof:
        """The identity that is proved, or why none is."""
        credential, peer, attestation = evidence
        if attestation:
            # A gateway attests only about callers that sent no token.
            attested = None if self._internal is None or credential else self._internal.attested(attestation)
            if attested is None:
                return Proof(ANONYMOUS, "only gateways of the fleet call on behalf of others")
            return Proof(attested)
        if not credential and peer:
            first, *others = (f"certificate:{name}" for name in peer)
            return Proof(Identity(first, aliases=tuple(others)))
        if not credential:
            return Proof(ANONYMOUS)
        if credential[: len(_SCHEME)].lower() != _SCHEME:
            return Proof(ANONYMOUS, "Authorization: expected 'Bearer TOKEN'")
        if len(credential) > LONGEST:
            return Proof(ANONYMOUS, f"the token is longer than {LONGEST} bytes")
        return self._of_token(credential[len(_SCHEME) :].strip().decode("utf-8", "replace"))

    def _of_token(self, token: str) -> Proof:
        digest = digest_of(token)
        own = None if self._internal is None else self._internal.identify(digest)
        if own is not None:
            return Proof(own)
        if self.access.policy.is_pending:
            # Nobody knows yet whether it proves anything: what needs a right is answered with 503, not with 401.
            return Proof(ANONYMOUS)
        record = self.access.tokens.get(digest)
        if record is None:
            return self._providers.identify(token, self._clock())
        if refusal := record.refusal(self._clock()):
            return Proof(ANONYMOUS, refusal)
        expires = float("inf") if record.expires is None else record.expires
        return Proof(Identity(record.name, record.groups, expires))

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                self.look()
            except Exception:
                log.exception("grants cannot be renewed")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
