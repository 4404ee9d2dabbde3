"""Reading a model's configuration, and writing it the way Triton's REST API does.

Stands between the repository's files (or a load request's ``config`` parameter) and everything that reads a
``ModelConfig``. It only parses: what was left out is ``completion``'s to fill, what makes no sense is
``validation``'s to refuse. An error here always names the source, the line where there is one, the key, what
was expected and what was given.
"""

from __future__ import annotations

import json
import re
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.config_keys import (
    Place,
    expectation,
    integer_range,
    is_map,
    place_at,
    suggestion,
    unknown_field,
)
from isochrone.protocol.control_json import is_repeated

_ROOT = model_config_pb2.ModelConfig.DESCRIPTOR

# A value no file can mean, to learn whether the text set the field at all: proto3 does not tell 0 from
# absent, and "max_batch_size: 0" is a decision while its absence is not.
_UNSET = -(2**31)

_THE_END = "the end of the text"

_BACKENDS = {
    "onnxruntime": "onnx",
    "onnx": "onnx",
    "python": "python",
    "pytorch": "torch",
    "torch": "torch",
    "libtorch": "torch",
    "ensemble": "ensemble",
}
_PLATFORMS = {
    "onnxruntime_onnx": "onnx",
    "python": "python",
    "pytorch_libtorch": "torch",
    "ensemble": "ensemble",
}


def parse_text(content: str | bytes, where: str) -> tuple[model_config_pb2.ModelConfig, bool]:
    """The configuration in a config.pbtxt, and whether it states ``max_batch_size``."""
    text = content if isinstance(content, str) else _decode(content, where)
    config = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise _text_error(text, error, where) from None
    except ValueError as error:
        raise _number_error(text, error, where) from None
    probe = model_config_pb2.ModelConfig(max_batch_size=_UNSET)
    text_format.Merge(text, probe)
    return config, probe.max_batch_size != _UNSET


def _decode(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        given = f"byte 0x{content[error.start]:02x}"
        raise ConfigError(f"{where}:{line}:{column}", "(encoding)", "UTF-8 text", given) from None


def _text_error(text: str, error: Any, where: str) -> ConfigError:
    line, column = error.GetLine() or 1, error.GetColumn() or 1
    message = str(error)
    position = f"{where}:{line}:{column}"
    place = place_at(text, line, column, _ROOT)
    # The parser has already read an unknown or repeated key when it complains, and stands behind it: the
    # message's own words say which key it was.
    if match := re.search(r'Message type "([\w.]+)" has no field named "([^"]+)"', message):
        return _unknown_key(place, _ROOT.file.pool.FindMessageTypeByName(match[1]), match[2], position)
    if match := re.search(r'should not have multiple "([^"]+)" fields', message):
        return ConfigError(position, _sibling(place.key, match[1]), "one value", "a second one")
    if match := re.search(r'Field "([^"]+)" is specified along with field "([^"]+)"', message):
        return ConfigError(position, _sibling(place.key, match[1]), f"only one of {match[2]} and {match[1]}", "both")
    if "Couldn't parse string" in message and "codec" in message:
        return ConfigError(position, place.key, "a quoted string in UTF-8", "bytes that are not UTF-8")
    wanted = re.search(r'Expected "([^"]+)"\.$', message)
    rest = text.split("\n")[line - 1][column - 1 :].strip() if line <= text.count("\n") + 1 else ""
    # At the end of the text, where a message is still open, the parser stands on the last token it took.
    if not rest or (wanted is not None and wanted[1] in "}>"):
        return _ended(text, place, wanted[1] if wanted is not None else "", position, where)
    given = re.match(r"\"[^\"]*\"?|'[^']*'?|[^\s,;{}\[\]<>]+|.", rest)
    shown = given[0] if given else rest
    if shown in ("]", "}", ">") and (wrong := _wrong_bracket(place, shown, position)) is not None:
        return wrong
    if wanted is not None and wanted[1] == ",":
        return ConfigError(position, place.key, f"',' or ']' to close {place.open[-1]}", shown)
    if wanted is not None and wanted[1] not in ("true", "false"):
        return ConfigError(position, place.key, f"'{wanted[1]}'", f"'{shown}'")
    if place.field is None or re.search(r"Expected identifier", message):
        return ConfigError(position, place.key, "a key or a closing bracket", shown)
    return ConfigError(position, place.key, expectation(place.field), shown)


def _number_error(text: str, error: ValueError, where: str) -> ConfigError:
    """An enum's number beyond 32 bits, which the parser hands to the message unchecked, without a line or a column."""
    number = str(error).rpartition(" ")[2]
    for match in re.finditer(r"[\w.+-]+", text):
        if _is_number(match[0], number):
            line = text.count("\n", 0, match.start()) + 1
            column = match.start() - text.rfind("\n", 0, match.start())
            place = place_at(text, line, column, _ROOT)
            if place.field is not None and place.field.enum_type is not None:
                return ConfigError(f"{where}:{line}:{column}", place.key, expectation(place.field), match[0])
    return ConfigError(where, "(top level)", "numbers that their keys can hold", str(error))


def _is_number(word: str, number: str) -> bool:
    try:
        return str(int(word, 0)) == number
    except ValueError:
        return False


def _unknown_key(place: Place, message: Any, name: str, position: str) -> ConfigError:
    """A key that its message does not have; one that an outer message has tells of a bracket forgotten before it."""
    outer = [known for known in place.messages[:-1] if known is not None and name in known.fields_by_name]
    if not outer:
        return ConfigError(position, place.key, unknown_field(message, name), f"'{name}'")
    unclosed = place.open[-1]
    belongs = "the top level" if outer[-1] is _ROOT else f"{outer[-1].name}"
    expected = f"a key of {unclosed.key}, or before it the '{unclosed.closing}' that closes {unclosed}"
    return ConfigError(position, place.key, expected, f"'{name}', a key of {belongs}")


def _ended(text: str, place: Place, wanted: str, position: str, where: str) -> ConfigError:
    """The text is over too early; with a bracket open, the place to mend is most likely where that stands."""
    lines = text.split("\n")
    unclosed = place_at(text, len(lines), len(lines[-1]) + 2, _ROOT).open
    if unclosed and wanted in ("", ",", "}", ">", "{"):
        innermost = unclosed[-1]
        expected = f"a '{innermost.closing}' that closes {innermost}"
        return ConfigError(f"{where}:{innermost.line}:{innermost.column}", innermost.key, expected, _THE_END)
    expected = f"'{wanted}'" if wanted else expectation(place.field) if place.field is not None else "a key"
    return ConfigError(position, place.key, expected, _THE_END)


def _wrong_bracket(place: Place, given: str, position: str) -> ConfigError | None:
    """A closing bracket that closes nothing, another one than is open, or a list that ends with a comma."""
    if not place.open:
        return ConfigError(position, "(top level)", "a key: no bracket is open here", f"'{given}'")
    innermost = place.open[-1]
    if innermost.closing != given:
        return ConfigError(position, innermost.key, f"'{innermost.closing}' to close {innermost}", f"'{given}'")
    if given == "]":
        return ConfigError(position, place.key, "a value", "']' after a ','")
    return None


def _sibling(key: str, name: str) -> str:
    parent, dot, _ = key.rpartition(".")
    return f"{parent}{dot}{name}"


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
        # A lone surrogate has no UTF-8 form: neither protobuf nor the answer could carry it.
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
        # protobuf's JSON writes 64-bit integers as strings, so both forms come in.
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
    """Whether a string has a UTF-8 form: JSON's escapes can hold half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _shown(value: Any) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def backend_name(config: model_config_pb2.ModelConfig, where: str = "config.pbtxt") -> str:
    """``onnx``, ``python``, ``torch`` or ``ensemble``, from whichever spelling the configuration uses."""
    backend = _known(config.backend, _BACKENDS, "backend", where)
    platform = _known(config.platform, _PLATFORMS, "platform", where)
    if backend and platform and backend != platform:
        raise ConfigError(where, "platform", f"one that fits backend '{config.backend}'", f"'{config.platform}'")
    name = backend or platform
    if config.HasField("ensemble_scheduling"):
        if name not in ("", "ensemble"):
            key, given = ("backend", config.backend) if backend else ("platform", config.platform)
            raise ConfigError(where, key, "'ensemble', since ensemble_scheduling is set", f"'{given}'")
        return "ensemble"
    if not name:
        raise ConfigError(where, "backend", f"one of {', '.join(sorted(_BACKENDS))}", "''")
    return name


def _known(value: str, known: dict[str, str], key: str, where: str) -> str:
    if not value:
        return ""
    if value not in known:
        raise ConfigError(where, key, suggestion(value, sorted(known), key), f"'{value}'")
    return known[value]
