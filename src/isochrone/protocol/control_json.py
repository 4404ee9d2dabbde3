"""Protobuf control messages as JSON, for REST: metadata, configuration, statistics, index.

The output matches Triton's: field names as in the .proto files, every field that has a value or a default, 64-bit
integers as numbers. Protobuf's own JSON printer writes those as strings, which perf_analyzer does not read as numbers.
"""

from __future__ import annotations

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
    for field in message.DESCRIPTOR.fields:
        # Submessages and members of a oneof have presence; plain fields are always there.
        if field.has_presence and not message.HasField(field.name):
            fill = absent and field.message_type is not None and field.containing_oneof is None
            if not fill:
                continue
        fields[field.name] = _field_json(field, getattr(message, field.name), absent)
    return fields


def _field_json(field: Any, value: Any, absent: bool) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        element = field.message_type.fields_by_name["value"]
        # JSON's keys are strings.
        return {str(key): _value_json(element, value[key], absent) for key in sorted(value)}
    if is_repeated(field):
        return [_value_json(field, element, absent) for element in value]
    return _value_json(field, value, absent)


def is_repeated(field: Any) -> bool:
    """Whether a field holds a list."""
    # FieldDescriptor.is_repeated came with protobuf 6.31, and its predecessor, label, warns since then.
    return isinstance(field.default_value, list)


def _value_json(field: Any, value: Any, absent: bool) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return message_json(value, absent=absent)
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return value
