"""Probes of the bandwidth: requests with large bodies that are sent while no request of a caller is as large.

They take at most a hundredth of the link, unless the link is so slow that the smallest one takes more: then they are
sent less often, down to a third. The share is that of the estimated bandwidth: a probe that is given up shows that the
link has become slower, and the next one is smaller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isochrone.clock import SECOND, now_ns
from isochrone.errors import DeadlineExceeded, IsochroneError
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Plan
from isochrone.worker.remote.link import LARGE_BYTES, Crossing

if TYPE_CHECKING:
    from isochrone.models.divisions import Link
    from isochrone.protocol.messages import Parameters, Tensors
    from isochrone.worker.served_version import ServedVersion

_SHARE = 0.01
_MOST_BYTES = 1 << 20
_RAREST = 3
_PATIENCE_NS = 3 * SECOND


def probe_size(link: Link, interval_ns: int) -> int:
    """Bytes of a probe for a link that is probed so often. Pure."""
    return int(min(_MOST_BYTES, max(LARGE_BYTES, link.bytes_per_second * interval_ns / 1e9 * _SHARE)))


def probe_interval(link: Link, interval_ns: int) -> int:
    """ns between two probes. Pure."""
    needed = probe_size(link, interval_ns) / (link.bytes_per_second * _SHARE) * 1e9
    return int(min(_RAREST * interval_ns, max(interval_ns, needed)))


class ProbeRequest(InferRequest):
    """Nobody reads its answer: the remote model reports how long it took."""

    __slots__ = ("is_late", "over", "size")

    def __init__(self, version: ServedVersion, size: int, now: int) -> None:
        # Random, so that no compression on the way makes it smaller.
        values = np.random.default_rng(1).random(size // 4, np.float32)
        name = version.signature.inputs[0].name
        plan = Plan(version.model_name, version.model_version, ((name, "FP32", values.shape),), None)
        super().__init__(plan, "", {name: values}, now, now + _PATIENCE_NS)
        self.size = size
        self.over = False
        #: It was given up: the link carried less than its size in its time.
        self.is_late = False

    def given_up(self) -> Crossing:
        """What a late probe tells: at best the link carried all of it in its time."""
        return Crossing(self.deadline, self.size, self.deadline - self.arrived, 0)

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self.over = True

    def fail(self, error: IsochroneError) -> None:
        self.over = True
        self.is_late = isinstance(error, DeadlineExceeded)

    def dropped(self) -> None:
        self.over = True


def send_probe(version: ServedVersion, size: int) -> ProbeRequest:
    request = ProbeRequest(version, size, now_ns())
    try:
        version.submit(request)
    except IsochroneError as error:
        request.fail(error)
    return request
