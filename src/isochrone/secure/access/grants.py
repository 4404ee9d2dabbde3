"""A grant: what one credential may do now.

Servers keep a grant with every message head that carries its credential, so a decision that was made costs one lookup
in a set. The keeper renews its grants when the file changes or a credential expires: a grant never outlives its reason
by more than the keeper's interval.
"""

from __future__ import annotations

from typing import NamedTuple

from isochrone.errors import PermissionDenied, Unauthenticated, Unavailable
from isochrone.secure.access.held import HeldRequests
from isochrone.secure.access.identity import ANONYMOUS, Identity
from isochrone.secure.access.policy import Policy

#: Decisions of one grant that are remembered: callers choose the models' names.
_MOST_REMEMBERED = 4096
#: In place of a model's name, which cannot contain it.
_SOME_MODEL = "/"


class Evidence(NamedTuple):
    """What a request brings to prove who its caller is."""

    #: The value of ``Authorization``; b"": none was sent.
    credential: bytes
    #: Names in the certificate of its connection.
    peer: tuple[str, ...] = ()
    #: What a gateway of the fleet says about the caller (``internal``); b"": nothing.
    attestation: bytes = b""


class Grant:
    """One credential's; renewed in place."""

    __slots__ = (
        "__weakref__",
        "_allowed",
        "account",
        "evidence",
        "held",
        "identity",
        "limits_priority",
        "policy",
        "refusal",
    )

    def __init__(self, evidence: Evidence, identity: Identity, policy: Policy, refusal: str) -> None:
        self.evidence = evidence
        self._allowed: set[tuple[str, str, int]] = set()
        #: Where requests wait while the key of the token is fetched; None: it is decided what the credential proves.
        self.held: HeldRequests | None = None
        self.renew(identity, policy, refusal)

    def renew(self, identity: Identity, policy: Policy, refusal: str) -> None:
        """``refusal``: why every call with this credential is refused; "": the policy decides."""
        self.identity = identity
        self.policy = policy
        self.refusal = refusal
        #: Whose quotas its requests use.
        self.account = policy.account_of(identity).encode()
        #: Some requests that it may make may ask for some priorities alone.
        self.limits_priority = policy.limits_priority(identity)
        self._allowed.clear()

    def require(self, permission: str, model: str = "", priority: int = 0) -> None:
        """Raise ``Unauthenticated`` or ``PermissionDenied`` unless the caller may."""
        key = (permission, model, priority)
        if key in self._allowed:
            return
        if self.refusal:
            raise Unauthenticated(self.refusal)
        decision = self.policy.decide(self.identity, permission, model, priority)
        if not decision.allowed and self.policy.is_pending:
            raise Unavailable("the access rules of the fleet have not been read from its store yet")
        if not decision.allowed and self.identity is ANONYMOUS:
            way = "send 'Authorization: Bearer TOKEN'; commands take ISOCHRONE_API_TOKEN"
            raise Unauthenticated(f"{permission} needs a credential: {way}")
        if not decision.allowed:
            raise PermissionDenied(f"{decision.reason}; an administrator can assign a role in the access file")
        if len(self._allowed) >= _MOST_REMEMBERED:
            self._allowed.clear()
        self._allowed.add(key)

    def require_for_any(self, permission: str) -> None:
        """The same for some model at least, before it is known which one."""
        key = (permission, _SOME_MODEL, 0)
        if key in self._allowed:
            return
        if self.refusal:
            raise Unauthenticated(self.refusal)
        if self.policy.allows_some(self.identity, permission):
            self._allowed.add(key)
        else:
            self.require(permission)
