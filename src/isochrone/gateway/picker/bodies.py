"""Bodies of requests that a picker sees: what they say of where a request goes, and the versions stamped on messages.

A body that is compressed is read here only up to a limit: it would hold the loop of all other requests. Where the path
names the model, such a body is read as far as it can be, and whatever is wrong with it is for the worker to reject.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from isochrone.errors import IsochroneError, PayloadTooLarge
from isochrone.gateway.front.stamps import Stamps
from isochrone.gateway.picker.calls import Call, Form
from isochrone.gateway.traffic.parameters import NONE, Parameters, read_bounded
from isochrone.gateway.traffic.prompts import TokenTimes, generate_fields, openai_fields, token_times
from isochrone.protocol.compression.codec import StartInflation, decompress, is_identity
from isochrone.protocol.grpc.calls import unpack
from isochrone.protocol.grpc.routing_fields import read_opening
from isochrone.protocol.openai.answers import InvalidParameter
from isochrone.wire.exchange import Buffer, Head

if TYPE_CHECKING:
    from isochrone.gateway.fleet.fleet import Fleet
    from isochrone.gateway.requests.request import Request

_PREFIX = 5
#: Bytes that are read of a compressed body when it is decompressed.
_MOST_INFLATED = 1 << 20


class Asked(NamedTuple):
    """What a body says of its request."""

    #: "": the path names it.
    model: str = ""
    version: str = ""
    parameters: Parameters = NONE
    prompt: bytes = b""
    tokens: TokenTimes | None = None
    #: Its answer comes as a stream.
    streams: bool = False


#: A body that says nothing, or that nobody has seen.
NOTHING_ASKED = Asked()


class Collected:
    """The beginning of a body, until it says where its request goes."""

    __slots__ = ("_call", "_head", "_limit", "_needed", "body")

    def __init__(self, call: Call, head: Head, limit: int) -> None:
        self._call = call
        self._head = head
        self._limit = limit
        self.body = bytearray()
        #: Bytes that say all; -1: only the whole body does.
        self._needed = _json_length(head) if call.form is Form.PATH and not _encoding(head) else -1

    def add(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > self._limit:
            raise PayloadTooLarge(f"the request's body is larger than max_body_bytes ({self._limit})")

    def is_enough(self, ended: bool) -> bool:
        size = len(self.body)
        if ended or 0 <= self._needed <= size:
            return True
        # Later messages of a stream follow the first one.
        return self._call.form is Form.GRPC and size >= _PREFIX and size >= _PREFIX + _length(self.body)

    def read(self, reads_prompt: bool) -> Asked:
        """What it says. ``reads_prompt``: the model's policy goes by prompts."""
        call, head, body = self._call, self._head, self.body
        if call.form is Form.GRPC:
            return _read_grpc(body, head)
        plain: Buffer = body
        length = _json_length(head) if call.form is Form.PATH else -1
        if encoding := _encoding(head):
            if call.form is Form.OPENAI:
                plain = _inflated(lambda: decompress(encoding, bytes(body), _MOST_INFLATED))
            elif (start := _inflated_start(encoding, body, length)) is None:
                return NOTHING_ASKED
            else:
                plain = start
        if call.form is Form.OPENAI:
            fields = openai_fields(plain)
            if not fields.model:
                raise InvalidParameter("model", "'model': expected the name of a model", "missing_required_parameter")
            parameters = Parameters(priority=fields.priority) if fields.priority else NONE
            return Asked(fields.model, "", parameters, fields.prompt, fields.tokens, fields.streams)
        if call.form is Form.GENERATE:
            found = generate_fields(plain, reads_prompt)
            return Asked("", "", found.parameters, found.prompt, found.tokens)
        return Asked(parameters=read_bounded(plain, len(plain) if length < 0 else min(length, len(plain))))


def _json_length(head: Head) -> int:
    """Bytes of the JSON part of an infer request; -1: all. A header that makes no sense is for the worker to reject."""
    value = head.get(b"inference-header-content-length")
    return int(value) if value is not None and value.isdigit() and len(value) <= 12 else -1


def _encoding(head: Head) -> bytes:
    """How the body is compressed; b"": it is not."""
    encoding = head.get(b"content-encoding")
    return b"" if encoding is None or is_identity(encoding) else encoding


def _inflated_start(encoding: bytes, body: Buffer, length: int) -> Buffer | None:
    """The JSON part of a compressed body; None: it cannot be read, or takes too long. ``length``: -1: all is JSON."""
    # One byte over the limit shows that there is more.
    most = _MOST_INFLATED + 1
    try:
        start = StartInflation(encoding, body, most, most if length < 0 else min(length, most)).finish()
    except IsochroneError:
        return None
    return start if len(start) <= _MOST_INFLATED else None


def _inflated(inflate: Callable[[], Buffer]) -> Buffer:
    """What only the whole of a compressed body or message says."""
    try:
        return inflate()
    except PayloadTooLarge:
        raise PayloadTooLarge(
            f"compressed data of more than {_MOST_INFLATED} bytes when decompressed, which is the most that a picker "
            "reads; send it uncompressed"
        ) from None


def _read_grpc(body: bytearray, head: Head) -> Asked:
    size = min(len(body), _PREFIX + _length(body)) if len(body) >= _PREFIX else 0
    message = bytes(body[_PREFIX:size])
    if size and body[0]:
        encoding = head.get(b"grpc-encoding") or b"identity"
        message = bytes(_inflated(lambda: unpack(body[0], body[_PREFIX:size], encoding, _MOST_INFLATED)))
    opening = read_opening(message, 0)
    return Asked(
        opening.model.decode("utf-8", "replace"),
        opening.version.decode("utf-8", "replace"),
        Parameters(opening.sequence, opening.timeout_ns, opening.priority, opening.starts_sequence),
        tokens=token_times(opening.time_to_first_token_ms, opening.inter_token_ms),
    )


class StampedMessages:
    """The messages of a gRPC call, each with the version that its request was placed with."""

    __slots__ = ("_buffer", "_encoding", "_is_first", "_limit", "_request", "_stamps")

    def __init__(self, fleet: Fleet, request: Request, head: Head, limit: int) -> None:
        self._request = request
        self._encoding = head.get(b"grpc-encoding") or b"identity"
        self._limit = limit
        self._stamps = Stamps(fleet)
        self._buffer = bytearray()
        self._is_first = True

    @property
    def held(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: Buffer) -> bytes:
        """The messages that have come, as they go to the worker."""
        buffer = self._buffer
        buffer += data
        passed: list[bytes] = []
        position = 0
        while len(buffer) - position >= _PREFIX:
            length = _length(buffer, position)
            if length > self._limit:
                raise PayloadTooLarge(f"a gRPC message of {length} bytes; max_body_bytes is {self._limit}")
            end = position + _PREFIX + length
            if end > len(buffer):
                break
            passed.append(self._stamped(bytes(buffer[position:end])))
            position = end
        del buffer[:position]
        return b"".join(passed)

    def rest(self) -> bytes:
        """What is left when the body has ended: a message that was cut off, for the worker to reject."""
        left, self._buffer = bytes(self._buffer), bytearray()
        return left

    def _stamped(self, framed: bytes) -> bytes:
        message: Buffer = memoryview(framed)[_PREFIX:]
        if framed[0]:
            message = _inflated(lambda: unpack(framed[0], framed[_PREFIX:], self._encoding, _MOST_INFLATED))
        opening = read_opening(message, 0)
        if self._is_first:
            self._is_first = False
            self._stamps.add(opening, b"" if self._request.version else self._request.replica_set.stamp)
        stamp = self._stamps.of(opening, self._request)
        if not stamp:
            return framed
        return b"".join((b"\0", (len(message) + len(stamp)).to_bytes(4, "big"), message, stamp))


def _length(body: bytearray, position: int = 0) -> int:
    return int.from_bytes(body[position + 1 : position + _PREFIX], "big")
