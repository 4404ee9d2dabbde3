"""Protobuf control messages as JSON, for REST: metadata, configuration, statistics, index.

The output matches Triton's: field names as in the .proto files, every field that has a value or a default, 64-bit
integers as numbers. Protobuf's own JSON printer writes those as strings, which perf_analyzer does not read as numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor


def model_config_json(message: Any) -> dict[str, Any]:
    """GET /v2/models/{model}/config: the ``ModelConfig`` itself, not the response around it."""
    return message_json(message)


def model_statistics_json(message: Any) -> dict[str, Any]:
    """GET /v2/models/stats and similar; perf_analyzer needs every duration, including zeros."""
    return message_json(message, absent=True)


def repository_index_json(message: Any) -> list[dict[str, Any]]:
    """POST /v2/repository/index: a list, where gRPC has a message around it."""
    return [message_json(model) for model in message.models]


def message_json(message: Any, *, absent: bool = False) -> dict[str, Any]:
    """A message as a dict; ``absent`` includes submessages that are not set, with their defaults."""
    fields: dict[str, Any] = {}
    for name, is_optional, convert in _fields(message.DESCRIPTOR, absent):
        if not is_optional or message.HasField(name):
            value = getattr(message, name)
            fields[name] = value if convert is None else convert(value)
    return fields


@cache
def _fields(descriptor: Any, absent: bool) -> tuple[tuple[str, bool, Callable[[Any], Any] | None], ...]:
    """(name, whether it is left out if not set, what makes JSON of its value) of each field of a message type.

    Looked up once: a page of statistics has some 30 messages for each model."""
    found = []
    for field in descriptor.fields:
        # Submessages and members of a oneof have presence; plain fields are always there.
        fill = absent and field.message_type is not None and field.containing_oneof is None
        found.append((field.name, field.has_presence and not fill, _conversion(field, absent)))
    return tuple(found)


def _conversion(field: Any, absent: bool) -> Callable[[Any], Any] | None:
    """None: the value is JSON as it is."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        convert_value = _single_conversion(field.message_type.fields_by_name["value"], absent)
        # JSON's keys are strings.
        return lambda value: {
            str(key): value[key] if convert_value is None else convert_value(value[key]) for key in sorted(value)
        }
    convert = _single_conversion(field, absent)
    if is_repeated(field):
        return list if convert is None else lambda value: [convert(element) for element in value]
    return convert


def is_repeated(field: Any) -> bool:
    """Whether a field holds a list."""
    # FieldDescriptor.is_repeated came with protobuf 6.31, and its predecessor, label, warns since then.
    return isinstance(field.default_value, list)


def _single_conversion(field: Any, absent: bool) -> Callable[[Any], Any] | None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return lambda value: message_json(value, absent=absent)
    if field.type == FieldDescriptor.TYPE_ENUM:
        names = {number: known.name for number, known in field.enum_type.values_by_number.items()}
        return lambda value: names.get(value, value)
    return None
