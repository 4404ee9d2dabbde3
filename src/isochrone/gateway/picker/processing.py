"""One call of Envoy: the parts of one request and of its response, in order, and a reply to each.

In the mode FULL_DUPLEX_STREAMED the request's body is handed back; in all others each message gets one reply. Where
Envoy sends the body before it needs the decision (BUFFERED, FULL_DUPLEX_STREAMED), the decision goes by the body, too.
An Envoy that breaks the protocol gets a gRPC status on this call; a client's mistake is answered to the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from isochrone.errors import Internal, InvalidArgument, IsochroneError, MalformedRequest, Unavailable, Unsupported
from isochrone.gateway.picker import replies
from isochrone.gateway.picker.bodies import NOTHING_ASKED, Asked, Collected, StampedMessages
from isochrone.gateway.picker.calls import Call, Form, body_needed, find_call
from isochrone.gateway.picker.order import Direction
from isochrone.gateway.picker.pick import Pick, SilentPick
from isochrone.gateway.picker.received import (
    BodyMode,
    Part,
    ProtocolConfig,
    Received,
    read_body,
    read_headers,
    read_subset,
    read_trailers,
)
from isochrone.gateway.picker.refusals import refusal
from isochrone.protocol.grpc.calls import OK_TRAILERS, RESPONSE_HEADERS, error_block, unpack
from isochrone.protocol.grpc.message_reader import MessageReader
from isochrone.protocol.openai.model_names import pinned_model, split_name
from isochrone.wire.exchange import Head

if TYPE_CHECKING:
    from isochrone.gateway.gateway import Gateway
    from isochrone.gateway.picker.destinations import Destinations
    from isochrone.gateway.picker.picker import Picker
    from isochrone.wire.http2.server_stream import ServerStream

log = structlog.get_logger(__name__)

#: What a message has beside a body.
_OVERHEAD = 1 << 20
_DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
_CONTENT_LENGTH = b"content-length"
#: The reply to headers whose decision comes with the body.
_WITHOUT_DESTINATION = replies.changed(Part.REQUEST_HEADERS, [replies.remove_header(replies.DESTINATION_HEADER)])


class Processing:
    """One call: the consumer of its messages, and their order."""

    def __init__(self, picker: Picker, stream: ServerStream, encoding: bytes) -> None:
        self.gateway: Gateway = picker.gateway
        self.destinations: Destinations = picker.destinations
        self.stream = stream
        self.arrived = stream.arrived
        self._picker = picker
        self._encoding = encoding
        limit = picker.gateway.limits.max_body_bytes
        self._limit = limit
        self._reader = MessageReader(limit + _OVERHEAD, stream)
        self._request = Direction()
        self._response = Direction()
        self._head: Head | None = None
        self._call: Call | None = None
        self._subset: frozenset[str] | None = None
        self._is_grpc = False
        self._collected: Collected | None = None
        self._pick: Pick | None = None
        self._stamped: StampedMessages | None = None
        #: The worker is known. Parts of the request that came before wait for it.
        self._is_decided = False
        self._waiting: list[tuple[Part, bytes, bool]] = []
        #: Bytes of messages that wait.
        self._held = 0
        #: Which part the decision answers.
        self._answered = Part.REQUEST_HEADERS
        self._over = False
        stream.owner = self

    @property
    def sees_trailers(self) -> bool:
        return self._picker.sees_trailers

    # Envoy's side.

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        try:
            self._reader.feed(data)
            while not self._over and (message := self._reader.take()) is not None:
                flag, payload = message
                size = len(payload)
                self._take(Received(bytes(unpack(flag, payload, self._encoding, self._limit))))
                if self._waiting or self._collected is not None:
                    self._held += size
                else:
                    self._reader.give_back(size + self._held)
                    self._held = 0
        except IsochroneError as error:
            self._fail(error)
        except Exception as error:
            # A fault of ours with one request must not touch the others.
            log.error("a request failed unexpectedly", exc_info=error)
            self._fail(Internal(f"{type(error).__name__}: {error}"))

    def ended(self) -> None:
        """Envoy needs nothing more."""
        if not self._over:
            self._close(OK_TRAILERS)

    def abandoned(self) -> None:
        """Envoy has given the call up: its client has gone, or the response is through."""
        self._leave()

    def shed(self) -> None:
        """What waits here is bounded by the windows."""

    def stopping(self) -> None:
        """A call that ends well lets Envoy go on alone, unless it waits for a decision or for parts of a body."""
        is_duplex = self._request.mode == _DUPLEX and self._request.is_open
        is_duplex = is_duplex or (self._response.mode == _DUPLEX and self._response.is_open)
        if self._is_decided and not is_duplex and not self._over:
            self._close(OK_TRAILERS)

    # Parts.

    def _take(self, message: Received) -> None:
        part = message.part
        if message.is_observed_only:
            raise Unsupported("observability_mode: a picker must be waited for; switch it off in Envoy")
        if part is Part.NOTHING:
            raise MalformedRequest("the message has no part of a request or response")
        if self._head is None:
            if part is not Part.REQUEST_HEADERS:
                raise InvalidArgument(
                    f"expected request_headers first, given {part.name.lower()}: set request_header_mode to SEND"
                )
            self._configure(message.config)
        if part is Part.REQUEST_HEADERS:
            self._request.take(part)
            self._request_headers(message)
        elif part is Part.REQUEST_BODY:
            self._request.take(part)
            self._request_body(message.content)
        elif part is Part.REQUEST_TRAILERS:
            self._request.take(part)
            self._wait_or_pass(part, b"", True)
        elif part is Part.RESPONSE_HEADERS:
            self._response.take(part)
            self._response_headers(message.content)
        elif part is Part.RESPONSE_BODY:
            self._response.take(part)
            body, ends = read_body(message.content)
            if ends:
                self._response.end()
            self._pass(part, body, ends)
        else:
            self._response.take(part)
            self._response_trailers(message.content)

    def _configure(self, config: ProtocolConfig | None) -> None:
        if config is None:
            return
        for name, mode in (("request", config.request_body), ("response", config.response_body)):
            if mode > _DUPLEX:
                raise Unsupported(f"{name}_body_mode {mode} is not known here: expected NONE to FULL_DUPLEX_STREAMED")
        self._request.mode, self._response.mode = config.request_body, config.response_body

    def _request_headers(self, message: Received) -> None:
        headers, ends = read_headers(message.content)
        if ends:
            self._request.end()
        method = path = b""
        for name, value in headers:
            if name == b":method":
                method = value
            elif name == b":path":
                path = value
        head = self._head = Head(method, path, headers)
        if not path:
            raise InvalidArgument("request_headers has no :path; forward_rules must let all headers through")
        self._is_grpc = (head.get(b"content-type") or b"").startswith(b"application/grpc")
        try:
            call = self._call = find_call(method, path, self._is_grpc)
            subset = read_subset(message.metadata)
            if subset is not None:
                subset = self.destinations.named(subset, self._is_grpc)
            self._subset = subset
            mode = self._request.mode
            if call.form is Form.ANYBODY:
                self._choose_anybody()
            elif ends and call.reads_body:
                self._decide(Collected(call, head, self._limit).read(False))
            elif not call.reads_body or mode not in (BodyMode.BUFFERED, _DUPLEX):
                self._decide(self._asked_by_headers(call, head))
            else:
                self._collected = Collected(call, head, self._limit)
                if mode == BodyMode.BUFFERED:
                    self._answered = Part.REQUEST_BODY
                    # A client's own would stand until the body comes, and Envoy may be told to show no trailers: then a
                    # request without a body never gets a decision.
                    self._send(_WITHOUT_DESTINATION)
        except IsochroneError as error:
            self.refuse(error, self._call)

    def _asked_by_headers(self, call: Call, head: Head) -> Asked:
        """What can be known without the body."""
        if call.form < Form.OPENAI:
            return NOTHING_ASKED
        named = pinned_model(head)
        if named is None or (call.is_grpc and self.gateway.fleet.is_led):
            # Of a fleet with committed versions, a message without its stamp would get any version.
            raise body_needed(call)
        return Asked(named[0], named[1])

    def _request_body(self, content: bytes) -> None:
        body, ends = read_body(content)
        if ends:
            self._request.end()
        if self._collected is None or self._over:
            self._wait_or_pass(Part.REQUEST_BODY, body, ends)
            return
        try:
            self._collected.add(body)
            self._waiting.append((Part.REQUEST_BODY, body, ends))
            self._look_at_body(ended=ends or self._request.mode == BodyMode.BUFFERED)
        except IsochroneError as error:
            self.refuse(error, self._call)

    def _look_at_body(self, *, ended: bool) -> None:
        collected, call = self._collected, self._call
        if collected is None or call is None or not collected.is_enough(ended):
            return
        served = self.gateway.fleet.models.get(call.model)
        asked = collected.read(served is not None and served.reads_prompts)
        # It may be large, and what waits has it, too.
        collected = self._collected = None
        self._decide(asked)

    def _wait_or_pass(self, part: Part, body: bytes, ends: bool) -> None:
        """A part of the request that says nothing of where it goes."""
        if self._is_decided:
            self._pass(part, body, ends)
            return
        self._waiting.append((part, body, ends))
        if part is Part.REQUEST_TRAILERS and self._collected is not None:
            try:
                if self._answered is Part.REQUEST_BODY:
                    raise InvalidArgument("the request has trailers and no body")
                self._look_at_body(ended=True)
            except IsochroneError as error:
                self.refuse(error, self._call)

    # The decision.

    def _choose_anybody(self) -> None:
        """Any healthy worker answers: the one with the fewest requests from here."""
        known = [
            (member.endpoint.in_flight, address)
            for member in self.gateway.fleet.healthy
            if self._subset is None or member.endpoint.address in self._subset
            if (address := self.destinations.address(member, self._is_grpc))
        ]
        if not known:
            raise Unavailable("no worker is ready")
        self.decided(min(known)[1], ())
        if self._request.mode == BodyMode.NONE and not self._over:
            # Envoy goes on alone: nothing of the response matters here.
            self._close(OK_TRAILERS)

    def _decide(self, asked: Asked) -> None:
        call, head = self._call, self._head
        assert call is not None
        assert head is not None
        fleet = self.gateway.fleet
        model = asked.model or call.model
        if call.form is Form.OPENAI and not asked.version:
            model, version = split_name(model, fleet.knows)
            asked = asked._replace(version=version)
        served = fleet.models.get(model) or fleet.model(model)
        # A gRPC worker reports its load in trailers, which not every Envoy is told to send here.
        kind = Pick if not call.is_grpc or self._picker.sees_trailers else SilentPick
        pick = self._pick = kind(self, call, head, served, asked, self._subset)
        if call.form is Form.GRPC and self._request.mode in (BodyMode.BUFFERED, _DUPLEX):
            self._stamped = StampedMessages(fleet, pick, head, self._limit)
        self.gateway.arrive(pick)

    def decided(self, address: bytes, mutations: Sequence[bytes], *, recurs: bool = True) -> None:
        """The worker is known. ``recurs``: other requests get the same reply."""
        if self._over:
            return
        self._is_decided = True
        waiting, self._waiting = self._waiting, []
        body: bytes | None = None
        if self._answered is Part.REQUEST_BODY and waiting:
            _, body, _ = waiting.pop(0)
            body, mutations = self._replaced(body, mutations)
        if recurs and body is None:
            self._send(replies.decision_again(self._answered, address, tuple(mutations)))
        else:
            self._send(replies.decision(self._answered, address, tuple(mutations), body))
        waiting.reverse()
        while waiting:
            self._pass(*waiting.pop())

    def _replaced(self, body: bytes, mutations: Sequence[bytes]) -> tuple[bytes | None, Sequence[bytes]]:
        """A buffered body with the version on it, and its length where the client announced one; None: as it came."""
        if self._stamped is None:
            return None, mutations
        stamped = self._stamped.feed(body) + self._stamped.rest()
        if stamped == body:
            return None, mutations
        if self._head is not None and self._head.get(_CONTENT_LENGTH) is not None:
            mutations = (*mutations, replies.set_header(_CONTENT_LENGTH, b"%d" % len(stamped)))
        return stamped, mutations

    def refuse(self, error: IsochroneError, call: Call | None) -> None:
        """The client is answered by Envoy, and the request goes nowhere."""
        if self._over:
            return
        self._send(refusal(error, call, is_grpc=self._is_grpc, stopping=self.gateway.stopping))
        self._close(OK_TRAILERS)

    def _pass(self, part: Part, body: bytes, ends: bool) -> None:
        """Reply to a part that goes on unchanged, or handed back."""
        if self._over:
            return
        is_body = part is Part.REQUEST_BODY or part is Part.RESPONSE_BODY
        mode = self._request.mode if part in (Part.REQUEST_BODY, Part.REQUEST_TRAILERS) else self._response.mode
        if mode == _DUPLEX and part in (Part.REQUEST_BODY, Part.REQUEST_TRAILERS) and self._stamped is not None:
            try:
                body = self._stamped.feed(body) + (self._stamped.rest() if ends else b"")
            except IsochroneError as error:
                self.refuse(error, self._call)
                return
            if part is Part.REQUEST_TRAILERS and body:
                self._send_all(replies.handed_back(Part.REQUEST_BODY, body, False))
        if not is_body or mode != _DUPLEX:
            self._send(replies.unchanged(part))
        elif body or ends:
            self._send_all(replies.handed_back(part, body, ends))

    # The response.

    def _response_headers(self, content: bytes) -> None:
        headers, ends = read_headers(content)
        if ends:
            self._response.end()
        pick = self._pick
        mutations: Sequence[bytes] = ()
        if pick is not None:
            if not self._is_decided:
                # Envoy answers by itself what it has not forwarded.
                self._collected = None
                self._waiting = []
                pick.leave()
            mutations = pick.responded(headers, ends)
        self._send(replies.changed(Part.RESPONSE_HEADERS, mutations))
        # An end of ours is cheaper for Envoy than its own. Trailers of gRPC may follow, if it is told to send them.
        is_done = (pick is None or not pick.attempts) and (ends or not self._is_grpc)
        if is_done and self._response.mode is not None and not self._response.is_open and not self._request.is_open:
            self._close(OK_TRAILERS)

    def _response_trailers(self, content: bytes) -> None:
        if self._is_grpc:
            self._picker.sees_trailers = True
        mutations = self._pick.ended_with(read_trailers(content)) if self._pick is not None else ()
        self._send(replies.changed(Part.RESPONSE_TRAILERS, mutations))
        if not self._request.is_open:
            self._close(OK_TRAILERS)

    # Sending.

    def _send(self, reply: bytes) -> None:
        stream = self.stream
        if not stream.begun:
            stream.send_headers(RESPONSE_HEADERS, False)
        stream.send_data(reply)
        if stream.is_congested:
            # Envoy sends bodies faster than it takes them back.
            stream.hold_window()
            stream.on_writable = stream.release_window

    def _send_all(self, several: Sequence[bytes]) -> None:
        for reply in several:
            self._send(reply)

    def abort(self) -> None:
        """Nothing better can be said."""
        self._leave()
        self.stream.abort()

    def _fail(self, error: IsochroneError) -> None:
        """Envoy's mistake, or a fault of ours: the call ends with a status."""
        if self._over:
            return
        block = error_block(error.grpc_status, error.message, trailers_only=not self.stream.begun)
        self._close(block)

    def _close(self, trailers: bytes) -> None:
        self._leave()
        if not self.stream.begun and trailers is OK_TRAILERS:
            self.stream.send_headers(RESPONSE_HEADERS, False)
        self.stream.end_with_trailers(trailers)

    def _leave(self) -> None:
        """The call is over, whoever ended it; so is its request."""
        self._over = True
        self._collected = None
        self._waiting = []
        if self._pick is not None:
            self._pick.leave()
