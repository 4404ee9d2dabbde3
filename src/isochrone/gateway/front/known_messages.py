"""What gRPC messages that were read before say, by the model's name and their length, for all heads of a gateway.

A message with the same layout as an earlier one says the same of what routing reads: one comparison per field, in place
of reading it. Callers choose the layouts, so that all of them together have a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isochrone.protocol.grpc.routing_fields import Layout

if TYPE_CHECKING:
    from isochrone.gateway.fleet.served_model import ServedModel

#: An estimate of the bytes of all layouts, of one, and of each of its fields.
_ROOM: Final = 16 * 1024 * 1024
_LAYOUT_BYTES: Final = 128
_FIELD_BYTES: Final = 192
#: No message has this.
_NO_LAYOUT: Final[Layout] = ((0, 0, b"none"),)


class KnownMessages:
    """Layouts by the field of a message that names its model; a gateway never forgets a model."""

    __slots__ = ("_held", "_models")

    def __init__(self) -> None:
        self._models: dict[bytes, tuple[ServedModel, dict[int, Layout]]] = {}
        self._held = 0

    def model_of(self, field: bytes) -> ServedModel | None:
        """The model that the field names, of messages of which some layout is known."""
        found = self._models.get(field)
        return None if found is None else found[0]

    def layout(self, field: bytes, length: int) -> Layout:
        """What a message of ``length`` bytes that begins with ``field`` must have; one that no message has: unknown."""
        found = self._models.get(field)
        return _NO_LAYOUT if found is None else found[1].get(length, _NO_LAYOUT)

    def remember(self, field: bytes, served: ServedModel, length: int, layout: Layout) -> None:
        layouts = self._models.setdefault(field, (served, {}))[1]
        self._held += _cost_of(layout)
        if (earlier := layouts.pop(length, None)) is not None:
            self._held -= _cost_of(earlier)
        if self._held > _ROOM:
            for _, others in self._models.values():
                others.clear()
            self._held = _cost_of(layout)
        layouts[length] = layout


def _cost_of(layout: Layout) -> int:
    return _LAYOUT_BYTES + sum(_FIELD_BYTES + len(fixed) for _, _, fixed in layout)
