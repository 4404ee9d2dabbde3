"""A worker's load report as the gateway reads it: ORCA's flat names into a ``LoadReport``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from struct import Struct

from isochrone.errors import IsochroneError, MalformedRequest
from isochrone.gateway.replicas import LoadReport
from isochrone.protocol.headers.divisions import DIVISION_KINDS, division_metric
from isochrone.protocol.headers.orca import (
    orca_binary,
    orca_json,
    orca_prefix,
    orca_text,
    parse_orca_binary,
    parse_orca_header,
)

#: Of any figure: what no worker means seriously must still fit into 64 bits of nanoseconds.
_MOST = 1e15


#: The figures of a divided model, as parsed reports name them.
_EDGE, _SPLIT, _CORE = (division_metric(kind).removeprefix("named_metrics.") for kind in DIVISION_KINDS)

#: One figure of the text form.
_FIGURE = re.compile(rb"(?:named_metrics\.)?(\w+)=([-+.\deE]+)")


def report_of_header(value: bytes) -> LoadReport:
    """A report in ``endpoint-load-metrics``. The text form, which is asked for, is read here at a fifth of the cost."""
    if not value.startswith(b"TEXT "):
        return report_of(parse_orca_header(value))
    try:
        return report_of({name.decode(): float(number) for name, number in _FIGURE.findall(value)})
    except ValueError:
        raise MalformedRequest(f"load report: expected numbers, given {value[:100]!r}") from None


#: Length of a binary report → how to take it apart, its fixed parts, and its names. A worker writes the same figures in
#: the same order every time, so all but the numbers repeats.
_layouts: dict[int, tuple[Struct, tuple[bytes, ...], tuple[str, ...]]] = {}


def report_of_message(message: bytes) -> LoadReport:
    """A report as protobuf bytes, from a gRPC trailer."""
    layout = _layouts.get(len(message))
    if layout is not None:
        parts = layout[0].unpack(message)
        if parts[::2] == layout[1]:
            return report_of(dict(zip(layout[2], parts[1::2], strict=True)))
    figures = parse_orca_binary(message)
    _remember_layout(message, tuple(figures))
    return report_of(figures)


def _remember_layout(message: bytes, names: tuple[str, ...]) -> None:
    prefixes = tuple(orca_prefix(name) for name in names)
    shape = Struct("<" + "".join(f"{len(prefix)}sd" for prefix in prefixes))
    if names and shape.size == len(message) and shape.unpack(message)[::2] == prefixes:
        if len(_layouts) >= 64:
            _layouts.clear()
        _layouts[len(message)] = (shape, prefixes, names)


#: Triton's gauge of requests that wait, per model and version.
_PENDING = re.compile(rb"^nv_inference_pending_request_count\{([^}]*)\} ([-+.\deE]+)$", re.MULTILINE)
_MODEL_LABEL = re.compile(rb'model="([^"]*)"')


def pending_requests(page: bytes) -> dict[str, int]:
    """Model → requests that wait, from a Triton's metrics page."""
    pending: dict[str, int] = {}
    for labels, number in _PENDING.findall(page):
        label = _MODEL_LABEL.search(labels)
        if label is not None:
            model = label[1].decode("utf-8", "replace")
            try:
                pending[model] = pending.get(model, 0) + int(_amount(float(number)))
            except ValueError:
                continue
    return pending


def relayed(value: bytes, draining: bool) -> bytes:
    """A worker's report as a gateway passes it on: whether one worker drains or is short of memory is not for a caller
    that sees the gateway."""
    try:
        figures = parse_orca_header(value)
    except IsochroneError:
        return value
    render = orca_json if value.startswith(b"JSON") else orca_text
    return render(_relayed(figures, draining))


def relayed_message(message: bytes, draining: bool) -> bytes:
    """The same of the protobuf form."""
    try:
        return orca_binary(_relayed(parse_orca_binary(message), draining))
    except IsochroneError:
        return message


def _relayed(figures: dict[str, float], draining: bool) -> dict[str, float]:
    kept = {name: value for name, value in figures.items() if name not in ("draining", "free_memory_bytes")}
    return {**kept, "draining": 1.0 if draining else 0.0}


def report_of(figures: Mapping[str, float]) -> LoadReport:
    """From a parsed report; figures a worker does not tell count as nothing known."""
    get = figures.get
    return LoadReport(
        int(_amount(get("in_flight", 0.0))),
        int(_amount(get("queue_depth", 0.0))),
        int(_amount(get("estimated_wait_us", 0.0)) * 1000),
        int(_amount(get("estimated_run_us", 0.0)) * 1000),
        int(_amount(get("least_run_us", 0.0)) * 1000),
        int(_amount(get("free_memory_bytes", 0.0))) or -1,
        get("draining", 0.0) > 0,
        int(_amount(get("inter_token_us", 0.0)) * 1000),
        int(_amount(get("least_wait_us", 0.0)) * 1000),
        _divisions(get(_EDGE, 0.0), get(_SPLIT, 0.0), get(_CORE, 0.0)),
    )


def _divisions(*figures: float) -> tuple[int, ...] | None:
    """By kind; None if a worker reports none, as nearly all do."""
    if not any(figures):
        return None
    return tuple(int(_amount(figure) * 1000) for figure in figures)


def _amount(value: float) -> float:
    """A worker may say anything, infinite or no number at all included."""
    return min(value, _MOST) if value > 0 else 0.0
