"""ORCA load reports (xds.data.orca.v3.OrcaLoadReport of github.com/cncf/xds) as text, JSON and protobuf.

A worker attaches its load to a response when the request asks for it; the gateway and the engines read it. A report is
a flat mapping from names to numbers. Parsers skip what they do not understand and raise ``MalformedRequest`` only for
bytes that are no report at all.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import isfinite
from typing import Final

from isochrone.errors import InvalidArgument, MalformedRequest
from isochrone.protocol.varint import read_varint
from isochrone.varint import encode_varint

#: A caller asks for a load report with this header; its value is the format: ``text`` or ``json`` (the convention of
#: Triton and vLLM) or ``bin``.
ORCA_FORMAT_HEADER: Final = b"endpoint-load-metrics-format"
#: Carries a report as text, prefixed TEXT, JSON or BIN.
ORCA_HEADER: Final = b"endpoint-load-metrics"
#: Carries the protobuf message itself: gRPC clients read it from trailing metadata (gRFC A51).
ORCA_BINARY_HEADER: Final = b"endpoint-load-metrics-bin"

# The message's own fields keep their names; "request_cost.x" and "utilization.x" are entries of those maps; every other
# name is an entry of ``named_metrics``.

_FIELD_NUMBERS: Final = {
    "cpu_utilization": 1,
    "mem_utilization": 2,
    "rps_fractional": 6,
    "eps": 7,
    "application_utilization": 9,
}
_MAP_NUMBERS: Final = {"request_cost": 4, "utilization": 5, "named_metrics": 8}
_FIELD_NAMES: Final = {number: name for name, number in _FIELD_NUMBERS.items()}
_MAP_NAMES: Final = {number: name for name, number in _MAP_NUMBERS.items()}

_WIRE_VARINT, _WIRE_64, _WIRE_LENGTH, _WIRE_32 = 0, 1, 2, 5
_DOUBLE: Final = struct.Struct("<d")
_pack_double: Final = _DOUBLE.pack
_NOT_IN_TEXT: Final = re.compile(r"[\s,=]|[^\x21-\x7e]")


# A server reports the same few metrics with every answer, so results that depend on the name alone are cached.
@lru_cache(maxsize=1024)
def _place(name: str) -> tuple[str, str]:
    """(map, name in the map); the map is "" for a field of the message itself."""
    if name in _FIELD_NUMBERS:
        return "", name
    map_name, dot, rest = name.partition(".")
    return (map_name, rest) if dot and map_name in _MAP_NUMBERS else ("named_metrics", name)


@lru_cache(maxsize=1024)
def _text_prefix(name: str) -> str:
    map_name, own_name = _place(name)
    if _NOT_IN_TEXT.search(own_name):
        raise InvalidArgument(f"load report: {name!r}: expected a name of printable ASCII without ',' or '='")
    return f"{map_name}.{own_name}=" if map_name else f"{own_name}="


@lru_cache(maxsize=1024)
def _binary_prefix(name: str) -> bytes:
    """The encoded bytes before the eight bytes of the double, which always come last."""
    map_name, own_name = _place(name)
    if not map_name:
        return encode_varint(_FIELD_NUMBERS[name] << 3 | _WIRE_64)
    key = own_name.encode()
    # A map is a repeated message of key (1) and value (2).
    entry = b"\x0a" + encode_varint(len(key)) + key + b"\x11"
    return encode_varint(_MAP_NUMBERS[map_name] << 3 | _WIRE_LENGTH) + encode_varint(len(entry) + 8) + entry


def orca_prefix(name: str) -> bytes:
    """The bytes before a metric's eight bytes in the binary form."""
    return _binary_prefix(name)


def _flat_name(map_name: str, name: str) -> str:
    """The inverse of ``_place``: the bare name of a named metric, unless that would be ambiguous."""
    prefix, dot, _ = name.partition(".")
    is_ambiguous = name in _FIELD_NUMBERS or (dot and prefix in _MAP_NUMBERS)
    return name if map_name == "named_metrics" and not is_ambiguous else f"{map_name}.{name}"


def orca_json(report: Mapping[str, float]) -> bytes:
    """A value of ``endpoint-load-metrics``: ``JSON {…}``, in ASCII."""
    fields: dict[str, float] = {}
    maps: dict[str, dict[str, float]] = {}
    for name, value in report.items():
        # JSON cannot represent values that are not finite; every form omits them.
        if isfinite(value):
            map_name, own_name = _place(name)
            (maps.setdefault(map_name, {}) if map_name else fields)[own_name] = value
    return b"JSON " + json.dumps({**fields, **maps}).encode("ascii")


def orca_text(report: Mapping[str, float]) -> bytes:
    """A value of ``endpoint-load-metrics``: ``TEXT name=number, …``. Names: no space, comma or '='."""
    parts = [f"{_text_prefix(name)}{value!r}" for name, value in report.items() if isfinite(value)]
    return f"TEXT {', '.join(parts)}".encode("ascii")


def orca_binary(report: Mapping[str, float]) -> bytes:
    """The protobuf message, for ``endpoint-load-metrics-bin``. The transport applies base64."""
    return b"".join([_binary_prefix(name) + _pack_double(value) for name, value in report.items() if isfinite(value)])


class LoadReport(dict[str, float]):
    """A report that many answers carry: each form is written once. Must not change."""

    __slots__ = ("_base64", "_json", "_text")

    def __init__(self, figures: Mapping[str, float]) -> None:
        super().__init__(figures)
        self._text = self._json = self._base64 = b""

    def header(self, form: bytes) -> bytes:
        """The value of ``endpoint-load-metrics``; ``form``: ``text``, otherwise JSON."""
        if form == b"text":
            self._text = self._text or orca_text(self)
            return self._text
        self._json = self._json or orca_json(self)
        return self._json

    @property
    def base64(self) -> bytes:
        """The value of ``endpoint-load-metrics-bin`` as a transport sends it: base64 without padding."""
        self._base64 = self._base64 or base64.b64encode(orca_binary(self)).rstrip(b"=")
        return self._base64


def parse_orca_header(value: bytes) -> dict[str, float]:
    """A report from ``endpoint-load-metrics``, in the form that its first word names."""
    form, _, rest = value.strip().partition(b" ")
    if form == b"JSON":
        return parse_orca_json(rest)
    if form == b"TEXT":
        return parse_orca_text(rest)
    if form == b"BIN":
        try:
            return parse_orca_binary(base64.b64decode(rest, validate=True))
        except binascii.Error as error:
            raise MalformedRequest(f"load report: expected base64 after BIN, given {rest[:40]!r}") from error
    raise MalformedRequest(f"load report: expected JSON, TEXT or BIN first, given {form[:40]!r}")


def reported_in_flight(value: bytes) -> int | None:
    """The requests that a worker has not answered yet, by the value of its header; None: it does not say."""
    report = parse_orca_header(value)
    found = report.get("in_flight", report.get("named_metrics.in_flight"))
    return None if found is None else int(found)


def parse_orca_json(text: bytes) -> dict[str, float]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"load report: expected a JSON object, given {text[:40]!r}") from error
    if not isinstance(message, dict):
        raise MalformedRequest(f"load report: expected a JSON object, given {text[:40]!r}")
    report: dict[str, float] = {}
    for name, value in message.items():
        if name in _MAP_NUMBERS and isinstance(value, dict):
            for entry_name, entry in value.items():
                _note(report, _flat_name(name, entry_name), entry)
        elif name in _FIELD_NUMBERS:
            _note(report, name, value)
    return report


def _note(report: dict[str, float], name: str, value: object) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            return
        if isfinite(number):
            report[name] = number


def parse_orca_text(text: bytes) -> dict[str, float]:
    report: dict[str, float] = {}
    for part in text.decode("latin-1").split(","):
        name, _, given = part.strip().partition("=")
        map_name, dot, rest = name.partition(".")
        try:
            number = float(given)
        except ValueError:
            continue
        if name in _FIELD_NUMBERS:
            _note(report, name, number)
        elif dot and map_name in _MAP_NUMBERS:
            _note(report, _flat_name(map_name, rest), number)
    return report


def parse_orca_binary(message: bytes) -> dict[str, float]:
    report: dict[str, float] = {}
    for number, value in _fields(message):
        if number in _FIELD_NAMES and isinstance(value, float):
            _note(report, _FIELD_NAMES[number], value)
        elif number in _MAP_NAMES and isinstance(value, bytes):
            name, figure = "", 0.0
            for entry_number, entry in _fields(value):
                if entry_number == 1 and isinstance(entry, bytes):
                    name = entry.decode("utf-8", "replace")
                elif entry_number == 2 and isinstance(entry, float):
                    figure = entry
            _note(report, _flat_name(_MAP_NAMES[number], name), figure)
    return report


def _fields(message: bytes) -> Iterator[tuple[int, float | bytes]]:
    """(field number, value) of a message's doubles and length-delimited fields; other fields are skipped."""
    position = 0
    while position < len(message):
        tag, position = read_varint(message, position)
        number, wire = tag >> 3, tag & 7
        if wire == _WIRE_VARINT:
            _, position = read_varint(message, position)
            continue
        if wire == _WIRE_LENGTH:
            length, position = read_varint(message, position)
        elif wire == _WIRE_64:
            length = 8
        elif wire == _WIRE_32:
            length = 4
        else:
            raise MalformedRequest(f"load report: expected a protobuf message, given wire type {wire}")
        value = message[position : position + length]
        if len(value) < length:
            raise MalformedRequest(f"load report: expected {length} bytes in field {number}, given {len(value)}")
        position += length
        if wire == _WIRE_64:
            yield number, _DOUBLE.unpack(value)[0]
        elif wire == _WIRE_LENGTH:
            yield number, value
