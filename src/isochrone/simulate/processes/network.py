"""Delays of messages between processes: a constant plus an exponential tail."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from isochrone.clock import MILLISECOND
from isochrone.settings.ranges import Amount
from isochrone.settings.sections import Section
from isochrone.simulate.draws import endless


class Network(Section):
    """One-way delays, in ms."""

    #: Between a gateway and a worker.
    one_way_ms: Amount = 0.1
    #: Mean of the exponential part on top.
    jitter_ms: Amount = 0.0
    #: Between a client and its gateway: added to the latency that the client sees.
    client_one_way_ms: Amount = 0.0

    def delays(self, random: np.random.Generator) -> Callable[[], int]:
        """A function that draws the next delay, in ns."""
        constant = round(self.one_way_ms * MILLISECOND)
        if not self.jitter_ms:
            return lambda: constant
        scale = self.jitter_ms * MILLISECOND
        return _whole(endless(lambda count: constant + random.exponential(scale, count))).__next__


def _whole(values: Iterator[float]) -> Iterator[int]:
    return map(int, values)
