"""Header fields of a request, as quotas, canaries and affinity look them up."""

from __future__ import annotations

from typing import Protocol


class Fields(Protocol):
    """Header fields by name."""

    def get(self, name: bytes) -> bytes | None: ...
