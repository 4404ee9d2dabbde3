"""Parses the JSON configuration of a load request, as in Triton's REST API.

Like ``pbtxt``, it only parses. Errors name the key, the expected and the given value.
"""

from __future__ import annotations

import json
import re
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.descriptors import expectation, integer_range, is_map, unknown_field
from isochrone.protocol.control_json import is_repeated

_ROOT = model_config_pb2.ModelConfig.DESCRIPTOR


def parse_json(content: str, where: str) -> tuple[model_config_pb2.ModelConfig, bool]:
    """The configuration in a load request's JSON, and whether it states ``max_batch_size``."""
    try:
        value = json.loads(content)
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}:{error.colno}"
        raise ConfigError(place, "(top level)", "valid JSON", error.msg) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(where, "(top level)", "valid JSON", str(error)) from None
    _check_json_message(value, _ROOT, "", where)
    try:
        config = json_format.ParseDict(value, model_config_pb2.ModelConfig())
    except (json_format.ParseError, ValueError) as error:
        raise ConfigError(where, "(top level)", "a model configuration", str(error).strip()) from None
    return config, any(key in value for key in ("max_batch_size", "maxBatchSize"))


def _check_json_message(value: Any, message: Any, path: str, where: str) -> None:
    if not isinstance(value, dict):
        raise ConfigError(where, path or "(top level)", "a JSON object", _shown(value))
    choices: dict[str, str] = {}
    for name, inner in value.items():
        # A lone surrogate has no UTF-8 form, which protobuf and the answer need.
        known = _is_text(name)
        field = (message.fields_by_name.get(name) or message.fields_by_camelcase_name.get(name)) if known else None
        shown = name if known else _shown(name)[1:-1]
        key = f"{path}.{shown}" if path else shown
        if field is None:
            raise ConfigError(where, key, unknown_field(message, name), _shown(name))
        if inner is None:
            continue
        if field.containing_oneof is not None:
            earlier = choices.setdefault(field.containing_oneof.name, name)
            if earlier != name:
                raise ConfigError(where, key, f"only one of {earlier} and {name}", "both")
        if is_map(field):
            _check_json_map(inner, field, key, where)
        elif is_repeated(field):
            if not isinstance(inner, list):
                raise ConfigError(where, key, "a JSON array", _shown(inner))
            for index, item in enumerate(inner):
                _check_json_value(item, field, f"{key}[{index}]", where)
        else:
            _check_json_value(inner, field, key, where)


def _check_json_map(value: Any, field: Any, key: str, where: str) -> None:
    if not isinstance(value, dict):
        raise ConfigError(where, key, "a JSON object", _shown(value))
    entry = field.message_type.fields_by_name
    for name, inner in value.items():
        _check_json_value(name, entry["key"], key, where)
        _check_json_value(inner, entry["value"], f"{key}[{_shown(name)}]", where)


def _check_json_value(value: Any, field: Any, key: str, where: str) -> None:
    if field.message_type is not None:
        _check_json_message(value, field.message_type, key, where)
    elif not _json_scalar_fits(value, field):
        raise ConfigError(where, key, expectation(field), _shown(value))


def _json_scalar_fits(value: Any, field: Any) -> bool:
    if field.enum_type is not None:
        if isinstance(value, str):
            return _is_text(value) and value in field.enum_type.values_by_name
        return type(value) is int and value in field.enum_type.values_by_number
    if (bounds := integer_range(field)) is not None:
        # protobuf's JSON writes 64-bit integers as strings, so both forms are accepted.
        if (isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value)) or (
            isinstance(value, float) and value.is_integer()
        ):
            value = int(value)
        return type(value) is int and bounds[0] <= value <= bounds[1]
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return isinstance(value, bool)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return type(value) in (int, float) or value in ("NaN", "Infinity", "-Infinity")
    return isinstance(value, str) and _is_text(value)


def _is_text(value: str) -> bool:
    """Whether a string has a UTF-8 form: JSON's escapes can encode half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _shown(value: Any) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
