"""The canary split: which version a request gets while a new version is evaluated on a part of the traffic. Pure.

The split is made before the version is pinned. A hash of the agent's id gives a fixed point between 0 and 1; agents
below the weight get the canary. So an agent keeps the canary as the weight grows, on every gateway, without shared
state.
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

    #: The version under evaluation; "": there is no canary.
    version: str = ""
    #: The version of the other requests; "": the one that is served without a canary.
    stable: str = ""
    #: Share of agents, and of requests without an agent, that get the canary.
    weight: Share = 0.0
    #: An agent keeps its version. Off: each request is drawn independently.
    sticky: bool = True
    #: A request chooses with ``always`` or ``never`` in this header; "": requests cannot choose.
    header: str = "x-canary"


class Canary:
    """The split of one model."""

    __slots__ = ("_prefix", "_random", "_sticky", "_threshold", "_versions", "header", "rules")

    def __init__(self, rules: CanaryRules, model: str, random: Random) -> None:
        self.rules = rules
        #: The header's name in lower case; empty: none.
        self.header = rules.header.lower().encode("latin-1") if rules.version else b""
        self._random = random
        self._sticky = rules.sticky
        self._threshold = int(rules.weight * _WHOLE) if rules.version else 0
        self._versions = (rules.stable, rules.version)
        # Different for each model and version: otherwise the same agents would get every canary first.
        self._prefix = blake2b(f"{model}\0{rules.version}".encode(), digest_size=16).digest()

    def version(self, agent: bytes = b"", header: bytes = b"") -> str:
        """The version of a request; "": the one that is served without a canary. ``header``: the header's value."""
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
