"""The versions that the messages of one stream get: of each model the same for the whole stream.

A message that names no version is sent with the stamp of one, which is appended to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.errors import InvalidArgument

if TYPE_CHECKING:
    from isochrone.gateway.fleet.fleet import Fleet
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.requests.request import Request
    from isochrone.protocol.grpc.routing_fields import Opening

#: Models of one stream whose stamps are remembered.
_MOST = 64


class Stamps:
    """By model and version as messages name them: what is appended to those."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[tuple[bytes, bytes], bytes] = {}

    def knows(self, model: bytes) -> bool:
        """Whether messages without a version of a model have a stamp already."""
        return (model, b"") in self._known

    def add(self, opening: Opening, stamp: bytes) -> None:
        if len(self._known) < _MOST:
            self._known[opening.model, opening.version] = stamp

    def of(self, opening: Opening, request: Request) -> bytes:
        """The stamp of a message; b"": it brings its version, or the worker may choose."""
        if opening.version and not self._fleet.is_led:
            return b""
        stamp = self._known.get((opening.model, opening.version))
        if stamp is None:
            served = self._fleet.model(opening.model.decode("utf-8", "replace"))
            stamp = self._committed(served, opening, request) if self._fleet.is_led else _current(served, request)
            self.add(opening, stamp)
        return stamp

    def _committed(self, served: ServedModel, opening: Opening, request: Request) -> bytes:
        """A message without a stamp would run the newest version there, whatever is committed."""
        version = opening.version.decode("utf-8", "replace")
        replica_set = served.replica_set(version) if version else served.choose(request.head)
        if replica_set.stages and replica_set.stages != request.replica_set.stages:
            # The head carries them, and it has been sent.
            raise InvalidArgument(
                f"model '{served.name}' is an ensemble; a stream sends the versions of stages once, when it begins: "
                "open another stream for it"
            )
        return b"" if version else replica_set.stamp


def _current(served: ServedModel, request: Request) -> bytes:
    """The current version, where the stream's endpoint has it."""
    address = request.tried[-1].endpoint.address if request.tried else ""
    return served.current.stamp if address in served.current.replicas else b""
