"""The types of values in fleet.yaml: ``2GiB``, ``50ms``, ``5%``, ``127.0.0.1:8000``. Pure.

Each is a type for pydantic that accepts the written form, holds a plain number or string, and describes itself in the
JSON schema. A plain number has the unit of its key, so that a fleet that was written as JSON is read unchanged.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from isochrone.errors import ConfigError
from isochrone.gateway.upstream.addresses import parse_upstream
from isochrone.models.sources.locations import RepositoryUrl, parse_location
from isochrone.protocol.headers.divisions import DIVISION_KINDS
from isochrone.settings.validator_errors import wrong

_BYTE_UNITS = {
    "B": 1,
    **{f"{letter}iB": 1 << 10 * power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)},
    # As Kubernetes writes them.
    **{f"{letter}i": 1 << 10 * power for power, letter in enumerate("KMGT", 1)},
}
_TIME_UNITS = {
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
}
_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-zµ%]*)", re.ASCII)
_NUMBER_OF_BYTES = "a number of bytes such as 200MiB, 2GiB or 1500000000"
#: Fits into 64-bit integers.
_MOST = 2**62


def _split(given: str) -> tuple[Decimal, str] | None:
    match = _QUANTITY.fullmatch(given.strip())
    return (Decimal(match[1]), match[2]) if match else None


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def parse_bytes(given: object) -> int:
    """Bytes: an integer, or a number with a unit."""
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= _MOST:
        return given
    if not isinstance(given, str) or (parts := _split(given)) is None:
        raise wrong(_NUMBER_OF_BYTES)
    number, unit = parts
    if unit not in _BYTE_UNITS:
        near = next((known for known in _BYTE_UNITS if known.lower() in (unit.lower(), f"{unit.lower()}ib")), None)
        raise wrong(f"{_NUMBER_OF_BYTES} (did you mean '{number}{near}'?)" if near and unit else _NUMBER_OF_BYTES)
    amount = number * _BYTE_UNITS[unit]
    if amount > _MOST:
        raise wrong(_NUMBER_OF_BYTES)
    return int(amount.to_integral_value())


def bytes_text(amount: int) -> str:
    """Bytes as exact text: ``2GiB``, ``1500B``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if amount and amount % _BYTE_UNITS[unit] == 0:
            return f"{amount // _BYTE_UNITS[unit]}{unit}"
    return f"{amount}B"


def _duration(given: object, unit: str) -> float:
    words = "milliseconds" if unit == "ms" else "seconds"
    expected = f"a number of {words}, or one with a unit such as 50ms, 2s or 5min"
    if _is_number(given):
        return float(given)  # type: ignore[arg-type]
    if not isinstance(given, str) or (parts := _split(given)) is None:
        raise wrong(expected)
    number, written = parts
    if written not in _TIME_UNITS:
        near = {"sec": "s", "secs": "s", "seconds": "s", "m": "min", "mins": "min", "minutes": "min", "msec": "ms"}
        meant = near.get(written.lower())
        raise wrong(f"{expected} (did you mean '{number}{meant}'?)" if meant else expected)
    return float(number * _TIME_UNITS[written] / _TIME_UNITS[unit])


def parse_milliseconds(given: object) -> float:
    return _duration(given, "ms")


def parse_seconds(given: object) -> float:
    return _duration(given, "s")


def parse_share(given: object) -> float:
    """A share: 0.05, or 5%."""
    expected = "a share such as 5% or 0.05, at most 100%"
    if _is_number(given) and 0 <= given <= 1:  # type: ignore[operator]
        return float(given)  # type: ignore[arg-type]
    if isinstance(given, str) and (parts := _split(given)) is not None and parts[1] == "%" and parts[0] <= 100:
        return float(parts[0] / 100)
    raise wrong(expected)


def parse_version(given: object) -> str:
    """A version's number, or ``latest``."""
    if isinstance(given, int) and not isinstance(given, bool) and 0 < given < 2**63:
        return str(given)
    if isinstance(given, str) and (given == "latest" or re.fullmatch(r"[1-9][0-9]{0,17}", given, re.ASCII)):
        return given
    raise wrong("a version such as 1, or latest")


def _order_or_table(given: object) -> object:
    if not isinstance(given, list | dict):
        raise wrong(f"a list such as [{', '.join(DIVISION_KINDS)}], or a mapping")
    return {"order": given} if isinstance(given, list) else given


def switch(given: object) -> object:
    """A section that may be switched on or off: ``canary: true`` has all defaults; ``canary: false`` is none."""
    return {True: {}, False: None}[given] if isinstance(given, bool) else given


def empty(given: Any) -> Any:
    """A key without a value stands for a section without keys."""
    return {} if given is None else given


def _one_or_many(given: object) -> object:
    return [given] if isinstance(given, str) else given


def file_path(given: str) -> str:
    if not given.strip() or "\0" in given:
        raise wrong("a path")
    try:
        Path(given).expanduser()
    except RuntimeError:
        raise wrong("a path whose home directory is known here") from None
    return given


def repository_place(given: str) -> str:
    """A path, or a URL of an object store."""
    try:
        return given if isinstance(parse_location(given), RepositoryUrl) else file_path(given)
    except ConfigError as error:
        raise wrong(error.expected, error.given) from None


def _address_given(given: object) -> object:
    """Reject a port alone, as in ``listen: 8000``, with the whole address in the error."""
    if isinstance(given, int) and not isinstance(given, bool):
        raise wrong(f"host:port, such as 127.0.0.1:{given if 0 <= given <= 65535 else 8000}")
    return given


def _address(given: str) -> str:
    host, colon, port = given.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not host or (":" in bare and not host.startswith("[")) or not re.fullmatch(r"\d{1,5}", port):
        raise wrong("host:port, such as 127.0.0.1:8000 or [::1]:8000")
    if int(port) > 65535:
        raise wrong("a port from 0 to 65535 (0: a free one)")
    return given


def split_address(text: str) -> tuple[str, int]:
    """Host, without brackets, and port."""
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _upstream(given: str) -> str:
    try:
        upstream = parse_upstream(given)
    except ConfigError as error:
        raise wrong(error.expected.removesuffix("[,api=openai]"), error.given) from None
    if upstream.api:
        raise wrong("a server of the Open Inference Protocol: others load no versions", repr(given))
    return given


def _name(given: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", given, re.ASCII):
        raise wrong("a name of a-z, 0-9 and -, at most 63 characters, that starts and ends with a letter or digit")
    return given


def _schema(*kinds: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(kinds)} if len(kinds) > 1 else kinds[0])


_NUMBER: dict[str, Any] = {"type": "number", "minimum": 0}
_POSITIVE: dict[str, Any] = {"type": "number", "exclusiveMinimum": 0}
_TIME_TEXT = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(us|µs|ms|s|min|h)$"}

#: Bytes.
Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    _schema(
        {"type": "integer", "minimum": 0},
        {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(B|[KMGT]iB|[kMGT]B|[KMGT]i)$"},
    ),
]
#: A span of time; a plain number is of milliseconds, or of seconds.
Milliseconds = Annotated[float, BeforeValidator(parse_milliseconds), Field(ge=0), _schema(_NUMBER, _TIME_TEXT)]
Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(ge=0), _schema(_NUMBER, _TIME_TEXT)]
#: The same, above 0.
PositiveMilliseconds = Annotated[
    float, BeforeValidator(parse_milliseconds), Field(gt=0), _schema(_POSITIVE, _TIME_TEXT)
]
PositiveSeconds = Annotated[float, BeforeValidator(parse_seconds), Field(gt=0), _schema(_POSITIVE, _TIME_TEXT)]
#: From 0 to 1.
Share = Annotated[
    float,
    BeforeValidator(parse_share),
    _schema(
        {"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "pattern": r"^(100|\d{1,2}(\.\d+)?)\s*%$"}
    ),
]
#: A number as a string, or "latest".
Version = Annotated[
    str,
    BeforeValidator(parse_version),
    _schema({"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^(latest|[1-9][0-9]*)$"}),
]
#: Of a fleet, a pool, a group of gateways: parts of process names and of keys in the store.
Name = Annotated[
    str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"})
]
#: Where a process listens; port 0: a free one.
Address = Annotated[
    str,
    BeforeValidator(_address_given),
    AfterValidator(_address),
    WithJsonSchema({"type": "string", "pattern": r"^.+:\d{1,5}$"}),
]
#: A server that runs already, written as for ``isochrone gateway --upstream``.
Upstream = Annotated[str, AfterValidator(_upstream)]
#: A file or directory; relative to the fleet.yaml.
FilePath = Annotated[str, AfterValidator(file_path)]
#: A directory, relative to the fleet.yaml, or a URL.
RepositoryPlace = Annotated[str, AfterValidator(repository_place)]
#: One repository, or a list of them.
Repositories = Annotated[
    tuple[RepositoryPlace, ...],
    Field(strict=False),
    BeforeValidator(_one_or_many),
    _schema({"type": "string"}, {"type": "array", "items": {"type": "string"}}),
]
#: The gateway's rule of a divided model: its order, or a table. Names and numbers are checked with the other rules.
DivisionOrder = Annotated[
    dict[str, Any],
    BeforeValidator(_order_or_table),
    _schema(
        {"type": "array", "items": {"enum": list(DIVISION_KINDS)}},
        {"type": "object", "properties": {"order": {"type": "array", "items": {"enum": list(DIVISION_KINDS)}}}},
    ),
]
#: Lists; YAML has no tuples.
Words = Annotated[tuple[str, ...], Field(strict=False)]
Upstreams = Annotated[tuple[Upstream, ...], Field(strict=False)]
Names = Annotated[tuple[Name, ...], Field(strict=False)]
Shares = Annotated[tuple[Share, ...], Field(strict=False)]
