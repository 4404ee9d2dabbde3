"""What all calls of one picker have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from isochrone.gateway.picker.destinations import Destinations

if TYPE_CHECKING:
    from isochrone.gateway.gateway import Gateway
    from isochrone.wire.http2.connection import Http2Connection


class Picker:
    """What the calls of one picker have in common."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.destinations = Destinations(gateway.fleet)
        #: Connections on which trailers of gRPC responses have come. Only Envoy's configuration says whether they do,
        #: and each Envoy may have another.
        self.with_trailers: WeakSet[Http2Connection] = WeakSet()
        self._turn = 0

    def take_turn(self, count: int) -> int:
        """Which of ``count`` workers that are alike is next."""
        self._turn += 1
        return self._turn % count
