"""Parses a config.pbtxt.

It only parses: ``completion`` fills in what was left out, ``validation`` rejects what cannot be served. Errors name the
file, the line, the key, the expected and the given value.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.descriptors import expectation, unknown_field
from isochrone.models.configuration.pbtxt_places import Place, place_at

_ROOT = model_config_pb2.ModelConfig.DESCRIPTOR

# A value that no file contains, to learn whether the text sets the field: proto3 does not distinguish 0 from absent,
# and "max_batch_size: 0" is a decision while its absence is not.
_UNSET = -(2**31)

_THE_END = "the end of the text"


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
    # The parser reports the position behind an unknown or repeated key; its message names the key.
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
    # At the end of the text, inside an open message, the parser reports the position of the last token.
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
    """The error of an enum's number beyond 32 bits, which the parser reports without line and column."""
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
    """The error of an unknown key. If an outer message has it, a bracket is missing before it."""
    outer = [known for known in place.messages[:-1] if known is not None and name in known.fields_by_name]
    if not outer:
        return ConfigError(position, place.key, unknown_field(message, name), f"'{name}'")
    unclosed = place.open[-1]
    belongs = "the top level" if outer[-1] is _ROOT else f"{outer[-1].name}"
    expected = f"a key of {unclosed.key}, or before it the '{unclosed.closing}' that closes {unclosed}"
    return ConfigError(position, place.key, expected, f"'{name}', a key of {belongs}")


def _ended(text: str, place: Place, wanted: str, position: str, where: str) -> ConfigError:
    """The error of a text that ends too early. If a bracket is open, its position is the most useful one."""
    lines = text.split("\n")
    unclosed = place_at(text, len(lines), len(lines[-1]) + 2, _ROOT).open
    if unclosed and wanted in ("", ",", "}", ">", "{"):
        innermost = unclosed[-1]
        expected = f"a '{innermost.closing}' that closes {innermost}"
        return ConfigError(f"{where}:{innermost.line}:{innermost.column}", innermost.key, expected, _THE_END)
    expected = f"'{wanted}'" if wanted else expectation(place.field) if place.field is not None else "a key"
    return ConfigError(position, place.key, expected, _THE_END)


def _wrong_bracket(place: Place, given: str, position: str) -> ConfigError | None:
    """The error of a closing bracket that does not match, or of a list that ends with a comma."""
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
