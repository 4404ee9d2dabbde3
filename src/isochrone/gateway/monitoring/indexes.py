"""Repository indexes as endpoints answer them. The same bytes are decoded once, however many endpoints send them.

A worker with a thousand models sends some 150 kB, which take a millisecond to decode; its index is read every second,
and rarely differs from the last one, or from that of the next worker. Long ones are decoded in steps.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from isochrone.gateway.housekeeping import Housekeeping, Steps, finished
from isochrone.wire.exchange import Buffer

#: Model → version → digest.
Served = Mapping[str, Mapping[str, str]]

#: Different indexes that are remembered: about as many as a fleet has pools, twice, while it changes.
_MOST = 16
#: Rows decoded in one turn of the loop: some 1 µs each. And bytes up to which an index is decoded at once.
_ROWS_PER_TURN, _SHORT = 256, 16_384


class _IndexRow(msgspec.Struct):
    """A row of the repository index, as far as it is read here. A version without a state is not loaded."""

    name: str
    version: str = ""
    state: str = ""
    digest: str = ""


class _Listed(msgspec.Struct):
    """A model in OpenAI's list."""

    id: str


class _Listing(msgspec.Struct):
    data: list[_Listed]


#: The version of models that have none: servers of OpenAI's API alone.
UNVERSIONED = "1"

_listing = msgspec.json.Decoder(_Listing)
_decoder = msgspec.json.Decoder(list[_IndexRow])
_splitter = msgspec.json.Decoder(list[msgspec.Raw])


class Indexes:
    """The last different indexes of one gateway's endpoints."""

    def __init__(self, housekeeping: Housekeeping | None = None) -> None:
        self._housekeeping = housekeeping or Housekeeping()
        self._known: OrderedDict[bytes, Served] = OrderedDict()
        #: Those that are being decoded: several endpoints may send a new one.
        self._decoding: dict[bytes, asyncio.Future[Served]] = {}
        #: How many were decoded.
        self.decoded = 0

    async def read(self, body: Buffer, is_openai: bool = False) -> tuple[bytes, Served]:
        """The body and what is ready there; both are shared. Raises ``msgspec.DecodeError``, ``UnicodeDecodeError``.

        ``is_openai``: the body is OpenAI's list of models.
        """
        key = bytes(body)
        served = self._known.get(key)
        if served is not None:
            self._known.move_to_end(key)
            return next(reversed(self._known)), served
        if is_openai:
            return key, self._keep(key, {model.id: {UNVERSIONED: ""} for model in _listing.decode(key).data})
        if len(key) <= _SHORT:
            return key, finished(self._decode(key))
        decoding = self._decoding.get(key)
        if decoding is None:
            decoding = self._decoding[key] = asyncio.ensure_future(self._housekeeping.do(self._decode(key)))
            decoding.add_done_callback(lambda done: self._decoded(key, done))
        # One endpoint that gives up does not stop it for the others.
        return key, await asyncio.shield(decoding)

    async def close(self) -> None:
        """Stop decoding."""
        decoding = list(self._decoding.values())
        for each in decoding:
            each.cancel()
        await asyncio.gather(*decoding, return_exceptions=True)

    def _decoded(self, key: bytes, decoding: asyncio.Future[Served]) -> None:
        del self._decoding[key]
        if not decoding.cancelled():
            # The endpoints that wait get the error; there may be none left.
            decoding.exception()

    def _decode(self, key: bytes) -> Steps[Served]:
        serves: dict[str, dict[str, str]] = {}
        if len(key) <= _SHORT:
            _add(serves, key)
        else:
            rows = _splitter.decode(key)
            for start in range(0, len(rows), _ROWS_PER_TURN):
                yield
                _add(serves, b"[%b]" % b",".join(rows[start : start + _ROWS_PER_TURN]))
        return self._keep(key, serves)

    def _keep(self, key: bytes, serves: Served) -> Served:
        self._known[key] = serves
        self.decoded += 1
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return serves


def _add(serves: dict[str, dict[str, str]], rows: bytes) -> None:
    """Add what is ready among the rows of an index."""
    for row in _decoder.decode(rows):
        if row.state == "READY":
            serves.setdefault(row.name, {})[row.version] = row.digest.removeprefix("sha256:")
