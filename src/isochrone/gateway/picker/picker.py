"""What all calls of one picker have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.gateway.picker.destinations import Destinations

if TYPE_CHECKING:
    from isochrone.gateway.gateway import Gateway


class Picker:
    """What the calls of one picker have in common."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.destinations = Destinations(gateway.fleet)
        #: Trailers of gRPC responses have come. Only the configuration of Envoy says whether they do.
        self.sees_trailers = False
