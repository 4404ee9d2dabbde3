"""Probes of the bandwidth: requests with large bodies that are sent while no request of a caller is as large.

They take at most a hundredth of the link, unless the link is so slow that the smallest one takes more: then they are
sent less often, down to a third. The share is that of the estimated bandwidth: a probe that takes long shows, while it
is under way, that the link has become slower, and the next one is smaller.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isochrone.clock import SECOND, now_ns
from isochrone.errors import IsochroneError
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Plan
from isochrone.worker.remote.link import LARGE_BYTES

if TYPE_CHECKING:
    from isochrone.models.divisions import Link
    from isochrone.protocol.messages import Parameters, Tensors
    from isochrone.worker.served_version import ServedVersion

_SHARE = 0.01
_MOST_BYTES = 1 << 20
#: On a link too fast to be measured, which may have become slow since.
_UNKNOWN_BYTES = 1 << 16
_RAREST = 3
_PATIENCE_NS = 3 * SECOND


def probe_size(link: Link, interval_ns: int) -> int:
    """Bytes of a probe for a link that is probed so often. Pure."""
    if math.isinf(link.bytes_per_second):
        return _UNKNOWN_BYTES
    return int(min(_MOST_BYTES, max(LARGE_BYTES, link.bytes_per_second * interval_ns / 1e9 * _SHARE)))


def probe_interval(link: Link, interval_ns: int) -> int:
    """ns between two probes. Pure."""
    needed = probe_size(link, interval_ns) / (link.bytes_per_second * _SHARE) * 1e9
    return int(min(_RAREST * interval_ns, max(interval_ns, needed)))


@functools.cache
def _payload() -> NDArray[Any]:
    """Random, so that no compression on the way makes it smaller; made once."""
    values = np.random.default_rng(1).random(_MOST_BYTES // 4, np.float32)
    values.flags.writeable = False
    return values


class ProbeRequest(InferRequest):
    """Nobody reads its answer: the remote model reports how long it took."""

    __slots__ = ("over", "size")

    def __init__(self, version: ServedVersion, size: int, now: int) -> None:
        values = _payload()[: size // 4]
        name = version.signature.inputs[0].name
        plan = Plan(version.model_name, version.model_version, ((name, "FP32", values.shape),), None)
        super().__init__(plan, "", {name: values}, now, now + _PATIENCE_NS)
        self.size = size
        self.over = False

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self.over = True

    def fail(self, error: IsochroneError) -> None:
        self.over = True

    def dropped(self) -> None:
        self.over = True


def send_probe(version: ServedVersion, size: int) -> ProbeRequest:
    request = ProbeRequest(version, size, now_ns())
    try:
        version.submit(request)
    except IsochroneError as error:
        request.fail(error)
    return request
