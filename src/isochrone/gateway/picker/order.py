"""The order of the parts of a request, and of those of its response. Pure."""

from __future__ import annotations

from isochrone.errors import MalformedRequest
from isochrone.gateway.picker.received import BodyMode, Part


class Direction:
    """How far the request, or the response, has come. Envoy sends headers, body and trailers in this order."""

    __slots__ = ("_ended", "_reached", "mode")

    def __init__(self) -> None:
        self._reached = 0
        self._ended = False
        #: How its body comes; None: Envoy does not say, as old ones do not.
        self.mode: int | None = None

    def take(self, part: Part) -> None:
        """A part has come. Raises if it is not its turn."""
        is_body = part is Part.REQUEST_BODY or part is Part.RESPONSE_BODY
        is_headers = part is Part.REQUEST_HEADERS or part is Part.RESPONSE_HEADERS
        if self._ended or part < self._reached or (is_headers and self._reached):
            raise MalformedRequest(f"{part.name.lower()} out of order: expected headers, body, trailers")
        if is_body and self.mode == BodyMode.NONE:
            raise MalformedRequest(f"{part.name.lower()} although protocol_config says NONE")
        self._reached = part
        self._ended = not (is_body or is_headers)

    def end(self) -> None:
        self._ended = True

    @property
    def has_begun(self) -> bool:
        return bool(self._reached)

    @property
    def is_open(self) -> bool:
        """Whether a part may come that must be answered."""
        return bool(self._reached) and not self._ended and self.mode != BodyMode.NONE
