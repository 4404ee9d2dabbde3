"""One call of Envoy: the parts of one request and of its response, in order, and a reply to each.

In the mode FULL_DUPLEX_STREAMED the request's body is handed back; in all others each message gets one reply. Where
Envoy sends the body before it needs the decision (BUFFERED, FULL_DUPLEX_STREAMED), the decision goes by the body, too.
An Envoy that breaks the protocol gets a gRPC status on this call; a client's mistake is answered to the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from isochrone.errors import Internal, InvalidArgument, IsochroneError, MalformedRequest, Unavailable, Unsupported
from isochrone.gateway.picker import replies
from isochrone.gateway.picker.bodies import NOTHING_ASKED, Asked, Collected, StampedMessages
from isochrone.gateway.picker.body_times import BodyTimes
from isochrone.gateway.picker.body_watch import BodyWatch
from isochrone.gateway.picker.calls import Call, Form, body_needed, find_call
from isochrone.gateway.picker.order import Direction
from isochrone.gateway.picker.outlet import Outlet
from isochrone.gateway.picker.pick import Pick, SilentPick, timeout_of
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
from isochrone.gateway.picker.refusals import readiness, refusal
from isochrone.protocol.grpc.calls import unpack
from isochrone.protocol.grpc.message_reader import MessageReader
from isochrone.protocol.openai.model_names import pinned_model, split_name
from isochrone.wire.exchange import Buffer, Head

if TYPE_CHECKING:
    from isochrone.gateway.gateway import Gateway
    from isochrone.gateway.picker.destinations import Destinations
    from isochrone.gateway.picker.picker import Picker
    from isochrone.wire.http2.server_stream import ServerStream

log = structlog.get_logger(__name__)

#: What a message has beside a body.
_OVERHEAD = 1 << 20
#: What a part that waits takes beside its body.
_PART = 128
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
        self._outlet = Outlet(stream)
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
        self._waiting: list[tuple[Part, Buffer, bool]] = []
        self._waited = 0
        #: Bytes of messages that are reserved.
        self._held = 0
        #: While the body is collected.
        self._watch: BodyWatch | None = None
        #: Which part the decision answers.
        self._answered = Part.REQUEST_HEADERS
        self._over = False
        stream.owner = self

    @property
    def sees_trailers(self) -> bool:
        return self.stream.connection in self._picker.with_trailers

    # Envoy's side.

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        try:
            self._reader.feed(data)
            while not self._over and (message := self._reader.take()) is not None:
                flag, payload = message
                self._held += len(payload)
                self._take(Received(bytes(unpack(flag, payload, self._encoding, self._limit))))
                if not self._settle():
                    raise Unavailable(self._reader.no_memory())
        except (InvalidArgument, Unsupported) as error:
            self._fail(error)
        except IsochroneError as error:
            self._refuse_or_fail(error)
        except Exception as error:
            # A fault of ours with one request must not touch the others.
            log.error("a request failed unexpectedly", exc_info=error)
            self._refuse_or_fail(Internal(f"{type(error).__name__}: {error}"))

    def _settle(self) -> bool:
        """Reserve the bytes that are kept of the messages that came, and no others; False: there is no memory."""
        kept = self._waited
        if self._collected is not None:
            kept += len(self._collected.body)
        if self._stamped is not None:
            kept += self._stamped.held
        if kept > self._held and not self._reader.reserve(kept - self._held):
            return False
        if kept < self._held:
            self._reader.give_back(self._held - kept)
        self._held = kept
        return True

    def ended(self) -> None:
        """Envoy needs nothing more."""
        if not self._over:
            self._close()

    def abandoned(self) -> None:
        """Envoy has given the call up: its client has gone, or the response is through."""
        self._leave()

    def shed(self) -> None:
        """There is no memory for answers. Of a request without a decision nothing has run."""
        if self._head is not None and not self._is_decided and not self._response.has_begun:
            self.refuse(Unavailable(self.stream.no_memory()).not_begun(), self._call)

    def stopping(self) -> None:
        """A call that ends well lets Envoy go on alone, unless it waits for a decision or for parts of a body."""
        is_duplex = self._request.mode == _DUPLEX and self._request.is_open
        is_duplex = is_duplex or (self._response.mode == _DUPLEX and self._response.is_open)
        if self._is_decided and not is_duplex and not self._over:
            self._close()

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
            self._subset = self.destinations.allowed(read_subset(message.metadata), self._is_grpc)
            mode = self._request.mode
            if call.form is Form.ANYBODY:
                self._choose_anybody()
            elif call.asks_ready:
                self._outlet.send(readiness(self.gateway.is_model_ready(call.model, call.version)))
                self._close()
            elif ends and call.reads_body:
                self._decide(Collected(call, head, self._limit).read(False))
            elif not call.reads_body or mode not in (BodyMode.BUFFERED, _DUPLEX):
                self._decide(self._asked_by_headers(call, head))
            else:
                self._collect(call, head)
                if mode == BodyMode.BUFFERED:
                    self._answered = Part.REQUEST_BODY
                    # A client's own would stand until the body comes, and Envoy may be set to show no trailers: then a
                    # request without a body never gets a decision.
                    self._outlet.send(_WITHOUT_DESTINATION)
        except IsochroneError as error:
            self.refuse(error, self._call)

    def _collect(self, call: Call, head: Head) -> None:
        timeout = timeout_of(call, head)
        if call.model:
            # It may raise: what a fleet does not serve needs no body.
            timeout = timeout or self.gateway.fleet.model(call.model).deadline_ns
        self._collected = Collected(call, head, self._limit)
        times = BodyTimes(self.arrived, timeout, self.gateway.limits.body_timeout)
        received = partial(len, self._collected.body)
        self._watch = BodyWatch(self.stream.connection.loop, times, received, self._body_is_late)

    def _body_is_late(self, error: IsochroneError) -> None:
        self.refuse(error, self._call)

    def _stop_collecting(self) -> None:
        self._collected = None
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

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
            self._look_at_body(ended=ends or self._request.mode == BodyMode.BUFFERED, ends=ends)
        except IsochroneError as error:
            self.refuse(error, self._call)

    def _look_at_body(self, *, ended: bool, ends: bool, has_trailers: bool = False) -> None:
        """``ended``: no more of the body comes; ``ends``: the request ends with it."""
        collected, call = self._collected, self._call
        if collected is None or call is None or not collected.is_enough(ended):
            return
        served = self.gateway.fleet.models.get(call.model)
        asked = collected.read(served is not None and served.reads_prompts)
        self._wait(Part.REQUEST_BODY, collected.body, ends)
        self._stop_collecting()
        if has_trailers:
            self._wait(Part.REQUEST_TRAILERS, b"", True)
        self._decide(asked)

    def _wait_or_pass(self, part: Part, body: bytes, ends: bool) -> None:
        """A part of the request that says nothing of where it goes."""
        if self._is_decided:
            self._pass(part, body, ends)
        elif self._collected is None:
            self._wait(part, body, ends)
        else:
            # Trailers: they end the body.
            try:
                if self._answered is Part.REQUEST_BODY:
                    raise InvalidArgument("the request has trailers and no body")
                self._look_at_body(ended=True, ends=False, has_trailers=True)
            except IsochroneError as error:
                self.refuse(error, self._call)

    def _wait(self, part: Part, body: Buffer, ends: bool) -> None:
        self._waiting.append((part, body, ends))
        self._waited += len(body) + _PART

    def _take_waiting(self) -> list[tuple[Part, Buffer, bool]]:
        waiting, self._waiting, self._waited = self._waiting, [], 0
        return waiting

    # The decision.

    def _choose_anybody(self) -> None:
        """Any healthy worker answers: the one with the fewest requests from here."""
        alike = self.destinations.least_busy(self._subset, self._is_grpc)
        if not alike:
            raise Unavailable("no worker is ready")
        self.decided(alike[self._picker.take_turn(len(alike))], ())
        if self._request.mode == BodyMode.NONE and not self._over:
            # Envoy goes on alone: nothing of the response matters here.
            self._close()

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
        # A gRPC worker reports its load in trailers, which not every Envoy is configured to send here.
        kind = Pick if not call.is_grpc or self.sees_trailers else SilentPick
        pick = self._pick = kind(self, call, head, served, asked, self._subset)
        if call.form is Form.GRPC and self._request.mode in (BodyMode.BUFFERED, _DUPLEX):
            self._stamped = StampedMessages(fleet, pick, head, self._limit)
        self.gateway.arrive(pick)

    def decided(self, address: bytes, mutations: Sequence[bytes], *, recurs: bool = True) -> None:
        """The worker is known. ``recurs``: other requests get the same reply."""
        if self._over:
            return
        self._is_decided = True
        waiting = self._take_waiting()
        body: bytes | None = None
        if self._answered is Part.REQUEST_BODY and waiting:
            _, came, _ = waiting.pop(0)
            try:
                body, mutations = self._replaced(came, mutations)
            except IsochroneError as error:
                self.refuse(error, self._call)
                return
        if recurs and body is None:
            self._outlet.send(replies.decision_again(self._answered, address, tuple(mutations)))
        else:
            self._outlet.send(replies.decision(self._answered, address, tuple(mutations), body))
        waiting.reverse()
        while waiting:
            self._pass(*waiting.pop())
        self._settle()

    def _replaced(self, body: Buffer, mutations: Sequence[bytes]) -> tuple[bytes | None, Sequence[bytes]]:
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
        self._outlet.send(refusal(error, call, is_grpc=self._is_grpc, stopping=self.gateway.stopping))
        self._close()

    def _pass(self, part: Part, body: Buffer, ends: bool) -> None:
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
                self._outlet.send_all(replies.handed_back(Part.REQUEST_BODY, body, False))
        if not is_body or mode != _DUPLEX:
            self._outlet.send(replies.unchanged(part))
        elif body or ends:
            self._outlet.send_all(replies.handed_back(part, body, ends))

    # The response.

    def _response_headers(self, content: bytes) -> None:
        headers, ends = read_headers(content)
        if ends:
            self._response.end()
        pick = self._pick
        mutations: Sequence[bytes] = ()
        if not self._is_decided:
            # Envoy answers by itself what it has not forwarded.
            self._stop_collecting()
            self._take_waiting()
            if pick is not None:
                pick.leave()
        if pick is not None:
            mutations = pick.responded(headers, ends)
        self._outlet.send(replies.changed(Part.RESPONSE_HEADERS, mutations))
        # An end of ours is cheaper for Envoy than its own. Trailers of gRPC may follow, if it is set to send them.
        is_done = (pick is None or not pick.attempts) and (ends or not self._is_grpc)
        if is_done and self._response.mode is not None and not self._response.is_open and not self._request.is_open:
            self._close()

    def _response_trailers(self, content: bytes) -> None:
        if self._is_grpc:
            self._picker.with_trailers.add(self.stream.connection)
        mutations = self._pick.ended_with(read_trailers(content)) if self._pick is not None else ()
        self._outlet.send(replies.changed(Part.RESPONSE_TRAILERS, mutations))
        if not self._request.is_open:
            self._close()

    # The end.

    def abort(self) -> None:
        """Nothing better can be said."""
        self._leave()
        self._outlet.abort()

    def _refuse_or_fail(self, error: IsochroneError) -> None:
        """No memory, a limit, a fault of ours. The client is answered while Envoy can: when a call fails, Envoy may go
        on without admission."""
        is_known = self._head is not None or isinstance(error, Unavailable)
        if is_known and not self._response.has_begun:
            self.refuse(error, self._call)
        else:
            self._fail(error)

    def _fail(self, error: IsochroneError) -> None:
        """Envoy's mistake, or one that only Envoy can hear of: the call ends with a status."""
        if self._over:
            return
        self._leave()
        self._outlet.fail(error)

    def _close(self) -> None:
        """The call ends well."""
        self._leave()
        self._outlet.end()

    def _leave(self) -> None:
        """The call has ended, from either side, and its request with it."""
        self._over = True
        self._stop_collecting()
        self._take_waiting()
        self._stamped = None
        if self._pick is not None:
            self._pick.leave()
