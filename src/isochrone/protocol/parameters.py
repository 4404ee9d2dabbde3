"""Request parameters that a ``Plan`` has fields for: priority, timeout, sequence."""

from __future__ import annotations

from typing import Any

from isochrone.clock import MICROSECOND
from isochrone.errors import InvalidArgument
from isochrone.protocol.tensors.datatypes import shown

#: Names of the parameters that ``read_parameters`` reads; all others are passed to the model.
PLAN_PARAMETERS = frozenset(("priority", "timeout", "sequence_start", "sequence_end", "sequence_id"))


def read_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Check the parameters that a plan has fields for; returns keyword arguments of ``Plan``."""
    fields: dict[str, Any] = {}
    for key, expected in (("priority", int), ("timeout", int), ("sequence_start", bool), ("sequence_end", bool)):
        value = parameters.get(key)
        if value is None:
            continue
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            raise InvalidArgument(f"parameter '{key}': expected {expected.__name__}, given {shown(value)}")
        if expected is int and not 0 <= value < 1 << 63:
            raise InvalidArgument(f"parameter '{key}': expected 0 to 2^63-1, given {value}")
        fields["timeout_ns" if key == "timeout" else key] = value * MICROSECOND if key == "timeout" else value
    sequence = parameters.get("sequence_id", 0)
    if isinstance(sequence, bool) or not isinstance(sequence, int | str):
        raise InvalidArgument(f"parameter 'sequence_id': expected an integer or a string, given {shown(sequence)}")
    if isinstance(sequence, int) and not 0 <= sequence < 1 << 64:
        raise InvalidArgument(f"parameter 'sequence_id': expected 0 to 2^64-1, given {sequence}")
    fields["sequence_id"] = sequence
    return fields
