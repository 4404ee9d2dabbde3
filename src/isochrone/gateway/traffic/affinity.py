"""What the choice of a worker sticks to: a sequence, or the value of a header such as the agent's id. Pure.

The key it makes is ``Demand.key``. A sequence always wins: its state lives on one worker. It decides nothing itself;
policies that know keys (consistent_hash, maglev) do.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The header an agent names itself in, unless the rules say otherwise.
AGENT_HEADER = "x-agent-id"
#: What the key of a sequence begins with: a sequence and an agent of the same number are not the same.
SEQUENCE_MARK = b"s"
#: Keys are kept short whatever a caller sends.
_MAX_KEY = 256


@dataclass(frozen=True, slots=True)
class AffinityRules:
    """What requests of a model stick to."""

    #: Requests with the same value of this header go to the same worker: ``x-agent-id`` for the agent; "": none.
    header: str = ""
    #: Requests of one sequence go to the same worker. Off only for models that ignore sequences.
    sequence: bool = True


class Affinity:
    """The keys of one model's requests."""

    __slots__ = ("_sequence", "header")

    def __init__(self, rules: AffinityRules) -> None:
        #: Name of the header to look up, as it stands on the wire; empty: none is needed.
        self.header = rules.header.lower().encode("latin-1")
        self._sequence = rules.sequence

    def key(self, sequence_id: bytes = b"", value: bytes = b"") -> bytes:
        """The key of one request; ``value`` is the header's. Empty: it may go anywhere. Sequence id 0 means none."""
        if self._sequence and sequence_id and sequence_id != b"0":
            return SEQUENCE_MARK + sequence_id[:_MAX_KEY]
        if self.header and value:
            return b"h" + value[:_MAX_KEY]
        return b""
