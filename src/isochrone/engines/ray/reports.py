"""What an actor reports of its process, as JSON: the supervisor's release may differ from the one on a node."""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from isochrone.control.fleet.derived.processes import ProcessSpec


class ExitReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of one process."""

    #: The version of the report that it first was part of.
    version: int
    pid: int
    status: int
    again_in: float | None = None
    #: The end of its log.
    lines: tuple[str, ...] = ()
    #: How it ended, if that says more than the status.
    reason: str = ""


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one process."""

    #: Grows with every change.
    version: int
    #: Differs from one start of the actor to the next.
    instance: str
    node: str
    address: str
    #: 0 while the process waits for its restart.
    pid: int = 0
    #: Seconds since it was started.
    age: float = 0.0
    restarts: int = 0
    log: str = ""
    exits: tuple[ExitReport, ...] = ()
    #: Why the actor does not start the process on its node; "": it does.
    refusal: str = ""


def encode_spec(spec: ProcessSpec) -> bytes:
    return msgspec.json.encode(spec)


def decode_spec(value: bytes) -> ProcessSpec:
    return msgspec.json.decode(value, type=ProcessSpec)


def read_spec(name: str, value: bytes) -> ProcessSpec:
    """The spec, also of another release. One that cannot be read has no needs, so that it equals no desired process."""
    try:
        return decode_spec(value)
    except msgspec.MsgspecError:
        return ProcessSpec(
            name,
            _part(value, _Role).role,
            _part(value, _Arguments).arguments,
            _part(value, _Pool).pool,
        )


class _Role(msgspec.Struct):
    #: The default: a gateway is never replaced before Ray has given up its node.
    role: Literal["controller", "gateway", "worker"] = "gateway"


class _Arguments(msgspec.Struct):
    arguments: tuple[str, ...] = ()


class _Pool(msgspec.Struct):
    pool: str = ""


_Part = TypeVar("_Part", _Role, _Arguments, _Pool)


def _part(value: bytes, kind: type[_Part]) -> _Part:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError:
        return kind()


def encode_report(report: Report) -> bytes:
    return msgspec.json.encode(report)


def decode_report(value: bytes) -> Report:
    return msgspec.json.decode(value, type=Report)
