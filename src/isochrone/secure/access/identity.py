"""Who a caller is: what its credential proves."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """``name`` is what audit records, logs and quotas know it by: ``token:robots``, ``oidc:plant/ada``,
    ``certificate:spiffe://plant/gateway``."""

    name: str
    groups: frozenset[str] = frozenset()
    #: Seconds since 1970.
    expires: float = math.inf
    #: Other names of the same caller, from the same proof.
    aliases: tuple[str, ...] = ()

    @property
    def subjects(self) -> tuple[str, ...]:
        """What an access file may assign roles to."""
        return (self.name, *self.aliases, *(f"group:{group}" for group in sorted(self.groups)))


#: A caller without a credential.
ANONYMOUS = Identity("anonymous")
