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

#: By it a caller asks where the time went.
TIMING_HEADER: Final = b"x-isochrone-timing"
#: Carries where the time went: a response header in HTTP, trailing metadata in gRPC.
SERVER_TIMING_HEADER: Final = b"server-timing"

_MILLISECONDS: Final = 1e-6
#: Steps of an ensemble that are told.
_MOST_STEPS: Final = 32
_STEP: Final = re.compile(r"step\d+\.(.+)")


def server_timing(request: InferRequest, now: int) -> bytes:
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
    return value


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
