"""Affinity keys: the sequence of a request, or the value of a header such as the agent's id. Pure.

The key becomes ``Demand.key``. A sequence takes precedence, since its state is on one worker. Policies that use keys
(consistent_hash, maglev) place requests by them.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The header with the agent's id, unless the rules name another.
AGENT_HEADER = "x-agent-id"
#: The first byte of a sequence's key, which differs from that of a header's value.
SEQUENCE_MARK = b"s"
#: Longer keys are cut.
_MAX_KEY = 256


@dataclass(frozen=True, slots=True)
class AffinityRules:
    """Which requests of a model stay on the same worker."""

    #: Requests with the same value of this header go to the same worker, for example ``x-agent-id``; "": none.
    header: str = ""
    #: Requests of one sequence go to the same worker. Switch it off only for models that ignore sequences.
    sequence: bool = True


class Affinity:
    """Computes the keys of one model's requests."""

    __slots__ = ("_sequence", "header")

    def __init__(self, rules: AffinityRules) -> None:
        #: The header's name in lower case; empty: none.
        self.header = rules.header.lower().encode("latin-1")
        self._sequence = rules.sequence

    def key(self, sequence_id: bytes = b"", value: bytes = b"") -> bytes:
        """The key of a request; ``value``: of the header. Empty: no affinity. A sequence id of 0 means none."""
        if self._sequence and sequence_id and sequence_id != b"0":
            return SEQUENCE_MARK + sequence_id[:_MAX_KEY]
        if self.header and value:
            return b"h" + value[:_MAX_KEY]
        return b""
