"""Which version a request gets while a new one is tried on a part of the traffic. Pure.

Asked on admission, before the version is pinned. An agent's place is a fixed point between 0 and 1 by its id; those
below the weight get the canary, so an agent that has it keeps it as the weight grows, on every gateway, without memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from random import Random

from isochrone.settings.ranges import Share

_WHOLE = 1 << 64


@dataclass(frozen=True, slots=True)
class CanaryRules:
    """How traffic is split between two versions of a model."""

    #: The version that is tried; "": there is no canary.
    version: str = ""
    #: The version the others get; "": the one that would be served without a canary.
    stable: str = ""
    #: Share of agents, or of requests that name no agent, that get the canary.
    weight: Share = 0.0
    #: An agent stays with its version. Off: each request is drawn on its own.
    sticky: bool = True
    #: A request decides for itself with ``always`` or ``never`` in this header; "": none may.
    header: str = "x-canary"


class Canary:
    """The split of one model."""

    __slots__ = ("_prefix", "_random", "_sticky", "_threshold", "_versions", "header", "rules")

    def __init__(self, rules: CanaryRules, model: str, random: Random) -> None:
        self.rules = rules
        #: Name of the header to look up, as it stands on the wire; empty: none is needed.
        self.header = rules.header.lower().encode("latin-1") if rules.version else b""
        self._random = random
        self._sticky = rules.sticky
        self._threshold = int(rules.weight * _WHOLE) if rules.version else 0
        self._versions = (rules.stable, rules.version)
        # Each model and version draws anew: otherwise the same agents would be first to every trial.
        self._prefix = blake2b(f"{model}\0{rules.version}".encode(), digest_size=16).digest()

    def version(self, agent: bytes = b"", header: bytes = b"") -> str:
        """The version a request gets; "": what would be served without a canary. ``header``: that header's value."""
        return self._versions[self._is_canary(agent, header)]

    def _is_canary(self, agent: bytes, header: bytes) -> bool:
        threshold = self._threshold
        if header and self.header:
            if header == b"always":
                return True
            if header == b"never":
                return False
        if not threshold:
            return False
        if agent and self._sticky:
            return int.from_bytes(blake2b(self._prefix + agent, digest_size=8).digest(), "big") < threshold
        return self._random.getrandbits(64) < threshold
