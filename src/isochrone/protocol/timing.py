"""What an answer says of time and load: the ``Server-Timing`` header and ORCA load reports.

Written by the transports just before the bytes leave, from the marks a request gathered on its way; read back
by the gateway, by ``isochrone infer`` and by tests. No clock is read here. Parsers take whatever a peer sent:
they leave out what they do not understand, and refuse only bytes that are no report at all.

Server-Timing: https://www.w3.org/TR/server-timing/. ORCA: xds.data.orca.v3.OrcaLoadReport of
github.com/cncf/xds.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from isochrone.errors import InvalidArgument, MalformedRequest
from isochrone.protocol.varint import encode_varint, read_varint

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest

#: By it a caller asks where the time went.
TIMING_HEADER: Final = b"x-isochrone-timing"
#: Carries where the time went: a response header in HTTP, trailing metadata in gRPC.
SERVER_TIMING_HEADER: Final = b"server-timing"
#: By it a caller asks for a load report, and says how: ``text`` or ``json`` (Triton's and vLLM's convention)
#: or ``bin``.
ORCA_FORMAT_HEADER: Final = b"endpoint-load-metrics-format"
#: Carries a report as text, prefixed TEXT, JSON or BIN.
ORCA_HEADER: Final = b"endpoint-load-metrics"
#: Carries the bare protobuf message: what gRPC clients read from trailing metadata (gRFC A51).
ORCA_BINARY_HEADER: Final = b"endpoint-load-metrics-bin"

_MILLISECONDS: Final = 1e-6
#: Steps of an ensemble that are told.
_MOST_STEPS: Final = 32
_STEP: Final = re.compile(r"step\d+\.(.+)")


def server_timing(request: InferRequest, now: int, network_in_ns: int | None = None) -> bytes:
    """The header's value: each stage's milliseconds. A stage the request never came to is left out.

    ``batch`` is the wait for an instance and the gathering of the batch; ``network_in_ns`` is the time its
    bytes took to arrive, where the transport knows.
    """
    dispatched, infer_start, infer_end = request.dispatched, request.infer_start, request.infer_end
    dispatch_ms = (request.enqueued - request.arrived) * _MILLISECONDS
    if infer_end:
        value = b"dispatch;dur=%.3f, queue;dur=%.3f, batch;dur=%.3f, compute;dur=%.3f, serialise;dur=%.3f" % (
            dispatch_ms,
            (dispatched - request.enqueued) * _MILLISECONDS,
            (infer_start - dispatched) * _MILLISECONDS,
            (infer_end - infer_start) * _MILLISECONDS,
            (now - infer_end) * _MILLISECONDS,
        )
    elif dispatched:
        value = b"dispatch;dur=%.3f, queue;dur=%.3f" % (
            dispatch_ms,
            (dispatched - request.enqueued) * _MILLISECONDS,
        )
    else:
        value = b"dispatch;dur=%.3f" % dispatch_ms
    for number, (model, nanoseconds) in enumerate(getattr(request, "steps", ()), 1):
        value += b", step%d.%b;dur=%.3f" % (number, quote(model, safe="").encode(), nanoseconds * _MILLISECONDS)
    if network_in_ns is None:
        return value
    return b"network-in;dur=%.3f, %b" % (network_in_ns * _MILLISECONDS, value)


_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED: Final = r'"(?:[^"\\]|\\.)*+"'
# Possessive throughout: a header made to be almost a match costs no backtracking.
_PARAMETER: Final = re.compile(rf"\s*+;\s*+({_TOKEN})(?:\s*+=\s*+({_TOKEN}|{_QUOTED}))?+")
_METRIC: Final = re.compile(rf"\s*+({_TOKEN})((?:\s*+;\s*+{_TOKEN}(?:\s*+=\s*+(?:{_TOKEN}|{_QUOTED}))?+)*+)")


def parse_server_timing(value: bytes | str) -> dict[str, float]:
    """Stage → milliseconds. Without a readable ``dur`` it is 0.0; of two of one name the first stands."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    stages: dict[str, float] = {}
    position = 0
    while position < len(text):
        metric = _METRIC.match(text, position)
        if metric is not None:
            stages.setdefault(metric[1], _duration(metric[2]))
            position = metric.end()
        # On to the next comma, over whatever did not parse.
        comma = text.find(",", position)
        if comma < 0:
            break
        position = comma + 1
    return stages


def note_step(request: Any, model: str, nanoseconds: int) -> None:
    """Keeps the time of an ensemble's step for ``server_timing``, of the first few."""
    try:
        steps = request.steps
    except AttributeError:
        steps = request.steps = []
    if len(steps) < _MOST_STEPS:
        steps.append((model, nanoseconds))


def step_of(stage: str) -> str | None:
    """The model of a step; None: it is a stage of its own. Steps are parts of ``compute``, and may overlap."""
    found = _STEP.fullmatch(stage)
    return unquote(found[1]) if found is not None else None


def through_gateway(fields: Sequence[tuple[bytes, bytes]], elapsed_ns: int) -> tuple[tuple[bytes, bytes], ...]:
    """The fields of a worker's answer with the gateway's part of the time in front of the worker's stages.

    ``elapsed_ns``: since the request arrived at the gateway. What the worker does not account for is ``gateway``: the
    gateway itself, attempts that failed, and the network between the two. Of a server that tells no stages the whole is
    ``upstream``.
    """
    elapsed = elapsed_ns * _MILLISECONDS
    told = next((value for name, value in fields if name == SERVER_TIMING_HEADER), None)
    others = tuple(field for field in fields if field[0] != SERVER_TIMING_HEADER)
    if told is None:
        return (*others, (SERVER_TIMING_HEADER, b"upstream;dur=%.3f" % elapsed))
    stages = parse_server_timing(told)
    hop = max(0.0, elapsed - sum(each for stage, each in stages.items() if step_of(stage) is None))
    return (*others, (SERVER_TIMING_HEADER, b"gateway;dur=%.3f, %b" % (hop, told)))


def _duration(parameters: str) -> float:
    for name, given in _PARAMETER.findall(parameters):
        if name.lower() == "dur":
            try:
                duration = float(given.strip('"'))
            except ValueError:
                return 0.0
            return duration if isfinite(duration) else 0.0
    return 0.0


# An ORCA report is flat here: name → number. The message's own fields keep their names; "request_cost.x" and
# "utilization.x" are entries of those maps; every other name is one of ``named_metrics``.

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


# A server names the same few figures in every answer, so what depends on the name alone is made once.
@lru_cache(maxsize=1024)
def _place(name: str) -> tuple[str, str]:
    """(map, or "" for a field of its own, name in it)."""
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
    """Everything up to the eight bytes of the double, which always come last."""
    map_name, own_name = _place(name)
    if not map_name:
        return encode_varint(_FIELD_NUMBERS[name] << 3 | _WIRE_64)
    key = own_name.encode()
    # A map is a repeated message of key (1) and value (2).
    entry = b"\x0a" + encode_varint(len(key)) + key + b"\x11"
    return encode_varint(_MAP_NUMBERS[map_name] << 3 | _WIRE_LENGTH) + encode_varint(len(entry) + 8) + entry


def orca_prefix(name: str) -> bytes:
    """What stands before a figure's eight bytes in the binary form."""
    return _binary_prefix(name)


def _flat_name(map_name: str, name: str) -> str:
    """The inverse of ``_place``: bare for a named metric, unless that would read as something else."""
    prefix, dot, _ = name.partition(".")
    is_ambiguous = name in _FIELD_NUMBERS or (dot and prefix in _MAP_NUMBERS)
    return name if map_name == "named_metrics" and not is_ambiguous else f"{map_name}.{name}"


def orca_json(report: Mapping[str, float]) -> bytes:
    """A value of ``endpoint-load-metrics``: ``JSON {…}``, in ASCII."""
    fields: dict[str, float] = {}
    maps: dict[str, dict[str, float]] = {}
    for name, value in report.items():
        # What is not finite says nothing, and JSON cannot say it; every form leaves it out.
        if isfinite(value):
            map_name, own_name = _place(name)
            (maps.setdefault(map_name, {}) if map_name else fields)[own_name] = value
    return b"JSON " + json.dumps({**fields, **maps}).encode("ascii")


def orca_text(report: Mapping[str, float]) -> bytes:
    """A value of ``endpoint-load-metrics``: ``TEXT name=number, …``. Names: no space, comma or '='."""
    parts = [f"{_text_prefix(name)}{value!r}" for name, value in report.items() if isfinite(value)]
    return f"TEXT {', '.join(parts)}".encode("ascii")


def orca_binary(report: Mapping[str, float]) -> bytes:
    """The message's own bytes, for ``endpoint-load-metrics-bin``; base64 is the transport's affair."""
    return b"".join([_binary_prefix(name) + _pack_double(value) for name, value in report.items() if isfinite(value)])


def parse_orca_header(value: bytes) -> dict[str, float]:
    """A report from ``endpoint-load-metrics``, in whichever form its first word says."""
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
    """(field number, value) of a message's doubles and length-delimited fields; others are stepped over."""
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
