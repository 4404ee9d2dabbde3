"""Repository indexes as endpoints answer them. The same bytes are decoded once, however many endpoints send them.

A worker with a thousand models sends some 150 kB, which take a millisecond to decode; its index is read every second,
and rarely differs from the last one, or from that of the next worker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from isochrone.wire.exchange import Buffer

#: Model → version → digest.
Served = Mapping[str, Mapping[str, str]]

#: Different indexes that are remembered: about as many as a fleet has pools, twice, while it changes.
_MOST = 16


class _IndexRow(msgspec.Struct):
    """A row of the repository index, as far as it is read here. A version without a state is not loaded."""

    name: str
    version: str = ""
    state: str = ""
    digest: str = ""


_decoder = msgspec.json.Decoder(list[_IndexRow])


class Indexes:
    """The last different indexes of one gateway's endpoints."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Served] = OrderedDict()
        #: How many were decoded.
        self.decoded = 0

    def read(self, body: Buffer) -> tuple[bytes, Served]:
        """The body and what is ready there; both are shared. Raises ``msgspec.DecodeError``, ``UnicodeDecodeError``."""
        key = bytes(body)
        served = self._known.get(key)
        if served is not None:
            self._known.move_to_end(key)
            return next(reversed(self._known)), served
        served = self._known[key] = _served(_decoder.decode(key))
        self.decoded += 1
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return key, served


def _served(rows: list[_IndexRow]) -> Served:
    serves: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.state == "READY":
            serves.setdefault(row.name, {})[row.version] = row.digest.removeprefix("sha256:")
    return serves
