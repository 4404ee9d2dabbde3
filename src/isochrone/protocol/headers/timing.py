"""The ``Server-Timing`` header (https://www.w3.org/TR/server-timing/): how long a request spent in each stage.

The transports write it just before the bytes leave, from the timestamps that a request gathered. The gateway,
``isochrone infer`` and tests parse it. This module reads no clock. The parser skips whatever it does not understand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest

#: A caller asks for timing with this header.
TIMING_HEADER: Final = b"x-isochrone-timing"
#: Carries the timing: a response header in HTTP, trailing metadata in gRPC.
SERVER_TIMING_HEADER: Final = b"server-timing"

_MILLISECONDS: Final = 1e-6
#: Steps of an ensemble that are reported.
_MAX_STEPS: Final = 32
_STEP: Final = re.compile(r"step\d+\.(.+)")


def server_timing(request: InferRequest, now: int) -> bytes:
    """The header's value: the milliseconds of each stage that the request reached.

    ``batch`` is the wait for an instance and the assembly of the batch.
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
    return value


_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED: Final = r'"(?:[^"\\]|\\.)*+"'
# Possessive quantifiers: a header that almost matches costs no backtracking.
_PARAMETER: Final = re.compile(rf"\s*+;\s*+({_TOKEN})(?:\s*+=\s*+({_TOKEN}|{_QUOTED}))?+")
_METRIC: Final = re.compile(rf"\s*+({_TOKEN})((?:\s*+;\s*+{_TOKEN}(?:\s*+=\s*+(?:{_TOKEN}|{_QUOTED}))?+)*+)")


def parse_server_timing(value: bytes | str) -> dict[str, float]:
    """Stage → milliseconds. 0.0 without a readable ``dur``; the first of two equal names counts."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    stages: dict[str, float] = {}
    position = 0
    while position < len(text):
        metric = _METRIC.match(text, position)
        if metric is not None:
            stages.setdefault(metric[1], _duration(metric[2]))
            position = metric.end()
        # Skip to the next comma, past anything that did not parse.
        comma = text.find(",", position)
        if comma < 0:
            break
        position = comma + 1
    return stages


def note_step(request: Any, model: str, nanoseconds: int) -> None:
    """Record the duration of an ensemble's step for ``server_timing``, up to a limit."""
    try:
        steps = request.steps
    except AttributeError:
        steps = request.steps = []
    if len(steps) < _MAX_STEPS:
        steps.append((model, nanoseconds))


def step_of(stage: str) -> str | None:
    """The model of a step; None: the stage is not a step. Steps are parts of ``compute`` and may overlap."""
    found = _STEP.fullmatch(stage)
    return unquote(found[1]) if found is not None else None


def through_gateway(fields: Sequence[tuple[bytes, bytes]], elapsed_ns: int) -> tuple[tuple[bytes, bytes], ...]:
    """Add the gateway's share of the time to the header fields of a worker's answer.

    ``elapsed_ns``: since the request arrived at the gateway. The stage ``gateway`` is the time that the worker's stages
    do not cover: the gateway itself, failed attempts, and the network between the two. If the server reports no stages,
    all of the time is ``upstream``.
    """
    elapsed = elapsed_ns * _MILLISECONDS
    reported = next((value for name, value in fields if name == SERVER_TIMING_HEADER), None)
    others = tuple(field for field in fields if field[0] != SERVER_TIMING_HEADER)
    if reported is None:
        return (*others, (SERVER_TIMING_HEADER, b"upstream;dur=%.3f" % elapsed))
    stages = parse_server_timing(reported)
    hop = max(0.0, elapsed - sum(each for stage, each in stages.items() if step_of(stage) is None))
    return (*others, (SERVER_TIMING_HEADER, b"gateway;dur=%.3f, %b" % (hop, reported)))


def _duration(parameters: str) -> float:
    for name, given in _PARAMETER.findall(parameters):
        if name.lower() == "dur":
            try:
                duration = float(given.strip('"'))
            except ValueError:
                return 0.0
            # A negative one would make the other stages look longer.
            return duration if isfinite(duration) and duration > 0 else 0.0
    return 0.0
