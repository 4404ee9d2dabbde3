"""The operator's rules for headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from isochrone.protocol.access.restrictions import RequiredHeader


@dataclass(frozen=True, slots=True)
class HeaderRules:
    """Required and forwarded headers. Empty: every API is open and no header becomes a parameter."""

    http_required: Mapping[str, RequiredHeader] = field(default_factory=dict)
    grpc_required: Mapping[str, RequiredHeader] = field(default_factory=dict)
    #: Headers whose names match become request parameters; None: no header does.
    http_forwarded: re.Pattern[str] | None = None
    grpc_forwarded: re.Pattern[str] | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.http_required or self.grpc_required or self.http_forwarded or self.grpc_forwarded)
