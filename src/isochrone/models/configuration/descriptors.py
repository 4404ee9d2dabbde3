"""The values that a field of a protobuf message expects, described for errors from its descriptor.

A new field in NVIDIA's messages needs no change here.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from isochrone.suggestions import suggestion

_INTEGER_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def integer_range(field: Any) -> tuple[int, int] | None:
    """The range of an integer field; None for other fields."""
    return _INTEGER_RANGES.get(field.cpp_type)


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def expectation(field: Any) -> str:
    """A description of a single value of ``field``."""
    if field.enum_type is not None:
        return "one of " + ", ".join(value.name for value in field.enum_type.values if value.name != "TYPE_INVALID")
    if field.message_type is not None:
        return "a message with " + ", ".join(inner.name for inner in field.message_type.fields)
    if (bounds := integer_range(field)) is not None:
        return f"an integer from {bounds[0]} to {bounds[1]}"
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return "true or false"
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return "a number"
    return "a quoted string"


def unknown_field(message: Any, word: str) -> str:
    return suggestion(word, [field.name for field in message.fields])
