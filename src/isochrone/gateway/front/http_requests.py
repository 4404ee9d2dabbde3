"""The codec of HTTP: requests to one endpoint over HTTP/1.1 or HTTP/2, and their answers.

Everything that follows from a head alone is computed once per distinct head: model, version, and the bytes of the head
that goes out. Per request that leaves the version, the time left and the length. The body passes unread, except for the
JSON part where it names a sequence, a timeout or a priority.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast
from urllib.parse import quote

from isochrone.clock import NEVER, now_ns
from isochrone.errors import IsochroneError
from isochrone.gateway.caller_requests import CallerRequest, UpstreamAttempt, launched
from isochrone.gateway.evaluation.sampling import HTTP
from isochrone.gateway.fleet.commitment import EPOCH_HEADER
from isochrone.gateway.front import request_ids
from isochrone.gateway.front.discarding_exchange import DiscardingExchange
from isochrone.gateway.front.division_fields import division_field, division_line
from isochrone.gateway.front.explanation import EXPLAIN_HEADER, PLACEMENT_HEADER, explanation
from isochrone.gateway.front.trace_fields import trace_parent_field
from isochrone.gateway.latencies.agents import agent_name
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.replicas import LoadReport
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.request import Request
from isochrone.gateway.resilience import fingerprints
from isochrone.gateway.resilience.conformance import foreign_http
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.traffic.asked_priority import asked_priority
from isochrone.gateway.traffic.parameters import GLANCE, Parameters, may_contain, read, read_bounded
from isochrone.gateway.upstream.connections import MOST_SHARED
from isochrone.gateway.upstream.load_reports import relayed, report_of_header
from isochrone.observe.tracing.trace_parent import TRACE_PARENT, sampled_trace, trace_parent_in
from isochrone.protocol.headers.orca import ORCA_FORMAT_HEADER, ORCA_HEADER
from isochrone.protocol.headers.rejections import UNPROCESSED_HEADER, is_marked
from isochrone.protocol.headers.request_fields import caller_ids
from isochrone.protocol.headers.stages import STAGES_HEADER
from isochrone.protocol.headers.timing import TIMING_HEADER, through_gateway
from isochrone.protocol.openai.model_names import MODEL_HEADER
from isochrone.protocol.rest.answers import respond_error
from isochrone.protocol.rest.headers import timeout_header
from isochrone.secure.access.internal import ON_BEHALF
from isochrone.wire.exchange import Buffer, Exchange, Head, Headers, Route
from isochrone.wire.http2.client import request_block

if TYPE_CHECKING:
    from isochrone.gateway.evaluation.sampling import Samples
    from isochrone.gateway.fleet.replica_set import ReplicaSet
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.gateway import Gateway
    from isochrone.wire.http1.client import Call
    from isochrone.wire.http2.client import ClientStream

TIMEOUT_HEADER = b"x-request-timeout-ms"
#: Of one connection, not of the message (RFC 9110 §7.6.1), or written anew here.
_NOT_FORWARDED = frozenset(
    (
        b"connection",
        b"proxy-connection",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
        b"content-length",
        b"origin",  # judged here; to a worker, every page's site is another than its own
        TIMEOUT_HEADER,
        EXPLAIN_HEADER,
        ORCA_FORMAT_HEADER,
        STAGES_HEADER,
        EPOCH_HEADER,
        MODEL_HEADER,
        ON_BEHALF,
    )
)
#: What Connection names, and is forwarded all the same.
_READ_HERE = frozenset(
    (b"host", b"authorization", b"content-type", b"content-encoding", b"inference-header-content-length")
)
#: Requests in flight on a worker from which on they share HTTP/2 connections: one write and one read then carry many.
#: They also do while the gateway has many at once (``is_crowded``), which saves an eighth of its time with six workers.
#: A lone request is faster on a connection of its own. Only our own workers take REST over HTTP/2.
_SHARED_FROM = 4
#: The mark speaks of one attempt, not of the request.
_NOT_RETURNED = _NOT_FORWARDED | {ORCA_HEADER, UNPROCESSED_HEADER}
_STATELESS, _ANSWERED = Kind.STATELESS, Outcome.ANSWERED
#: Rejections: another endpoint may take the request.
_REJECTIONS = frozenset((429, 503, 504))
_FAILURES = frozenset((500, 502))
#: Bodies up to this size go out in one frame.
_JOIN_LIMIT = 16_384
#: JSON parts that say nothing a gateway must know, of all requests; bytes of them that are remembered.
_plain_starts: set[bytes | None] = set()
_MAX_STARTS_BYTES = 4 << 20
#: Bytes at the start, or at the end, of a JSON part in which an id is looked for.
_ID_BYTES = 192
#: Bytes of an answer's head that is remembered.
_MAX_RETURNED_BYTES = 4096


class HttpRoute(Route):
    """Requests with one head that go to one endpoint."""

    #: What the JSON part of one request says; None: it has to be read.
    parameters: Parameters | None = None
    #: The priority that it asks for, of a caller whose role limits it.
    asked_priority = 0
    #: Further headers that are not forwarded.
    dropped: ClassVar[frozenset[bytes]] = frozenset()

    def __init__(self, gateway: Gateway, head: Head, model: str, version: str, path: bytes, kind: Kind) -> None:
        self.gateway = gateway
        self.model = model
        self.version = version
        #: What follows the model and version: ``/infer`` and its query.
        self.path = path
        self._head = head
        self.kind = kind
        self.is_inference = path.partition(b"?")[0] == b"/infer"
        self.timeout_ns = timeout_header(head)
        self.agent = agent_name(head.get(gateway.fleet.agent_header))
        self.trace_id = sampled_trace(trace_parent_in(head.headers))
        self.caller_ids = caller_ids(head)
        self.wants_load = head.get(ORCA_FORMAT_HEADER) is not None
        self.wants_timing = head.get(TIMING_HEADER) is not None
        self.explains = head.get(EXPLAIN_HEADER) is not None
        #: The epoch it asks for; answered with the one it got.
        self.epoch = head.get(EPOCH_HEADER)
        #: Answers go back with nothing added.
        self.returns_plainly = not (self.wants_load or self.wants_timing or self.explains or self.epoch is not None)
        #: Nothing in the head says more than the model's rules do.
        self.is_plain = not version and self.epoch is None and kind is _STATELESS
        length = head.get(b"inference-header-content-length")
        # One that makes no sense is for the worker to refuse.
        self.json_length = int(length) if length is not None and length.isdigit() and len(length) <= 12 else -1
        dropped = _NOT_FORWARDED | self.dropped | _named_by_connection(head)
        if gateway.tracing is not None:
            dropped |= {TRACE_PARENT}
        passed = tuple(header for header in head.headers if header[0] not in dropped)
        self._passed: Headers = passed + gateway.fleet.credential.for_caller(passed, head.peer)
        self._headers = b"".join(b"%s: %s\r\n" % header for header in self._passed)
        if head.get(b"host") is None:
            self._headers += b"host: isochrone\r\n"
        #: May share a connection with other callers' requests. A large head may not: the worker counts those of each
        #: connection, and closes one that brings too many. An answer to HEAD announces a body that does not come, which
        #: only HTTP/1.1's own connection can tell.
        self.shareable = head.method != b"HEAD" and len(self._headers) + len(head.target) <= MOST_SHARED
        self._heads: dict[tuple[tuple[str, bytes], bool], bytes] = {}
        self._blocks: dict[tuple[tuple[str, bytes], bool], bytes] = {}
        self._others: dict[str, HttpRoute] = {}

    def handle(self, exchange: Exchange) -> None:
        try:
            fleet = self.gateway.fleet
            served = fleet.models.get(self.model) or fleet.model(self.model)
            request = HttpRequest(self, exchange, served)
        except IsochroneError as error:
            exchange.owner = None
            respond_error(exchange, error)
        else:
            self.gateway.arrive(request)

    def read(self, text: Buffer) -> HttpRoute:
        """The same for one request with a compressed body and this JSON part."""
        return self.opened(read_bounded(text, len(text)))

    def opened(self, parameters: Parameters) -> HttpRoute:
        """The same for one request with a compressed body, whose JSON part has been read."""
        route = type(self)(self.gateway, self._head, self.model, self.version, self.path, self.kind)
        route.parameters = parameters
        route._heads, route._blocks, route._others = self._heads, self._blocks, self._others
        return route

    def for_model(self, model: str) -> HttpRoute:
        """The same requests for another model: shadow traffic."""
        if model == self.model:
            return self
        route = self._others.get(model)
        if route is None:
            route = type(self)(self.gateway, self._head, model, "", self.path, self.kind)
            self._others[model] = route
        return route if self.parameters is None else route.opened(self.parameters)

    def outgoing(self, replica_set: ReplicaSet, asks: bool) -> bytes:
        """The head for a worker, up to what differs from request to request."""
        key = (replica_set.tag, asks)
        head = self._heads.get(key)
        if head is None:
            head = b"%s %s HTTP/1.1\r\n%s" % (self._head.method, self._target(replica_set.version), self._headers)
            for header in self._pins(replica_set):
                head += b"%s: %s\r\n" % header
            if replica_set.stages:
                head += b"%s: %s\r\n" % (STAGES_HEADER, replica_set.stages)
            if asks or self.wants_load:
                form = self._head.get(ORCA_FORMAT_HEADER) or b"text"
                head += b"%s: %s\r\n" % (ORCA_FORMAT_HEADER, form)
            if len(self._heads) > 64:
                self._heads.clear()
            self._heads[key] = head
        return head

    def outgoing_block(self, replica_set: ReplicaSet, asks: bool) -> bytes:
        """The same as a header block, for a worker whose connection is shared."""
        key = (replica_set.tag, asks)
        block = self._blocks.get(key)
        if block is None:
            fields = tuple(header for header in self._passed if header[0] != b"host")
            if asks or self.wants_load:
                fields = (*fields, (ORCA_FORMAT_HEADER, self._head.get(ORCA_FORMAT_HEADER) or b"text"))
            fields += self._pins(replica_set)
            authority = self._head.get(b"host") or b"isochrone"
            block = (
                request_block(
                    self._head.method, self.gateway.fleet.scheme, authority, self._target(replica_set.version), fields
                )
                + replica_set.stage_field
            )
            if len(self._blocks) > 64:
                self._blocks.clear()
            self._blocks[key] = block
        return block

    def _pins(self, replica_set: ReplicaSet) -> Headers:
        """Headers that say which version is to answer, where the target does not."""
        return ()

    def _target(self, version: str) -> bytes:
        path = b"/v2/models/" + quote(self.model, safe="").encode()
        if version:
            path += b"/versions/" + quote(version, safe="").encode()
        return path + self.path


def _named_by_connection(head: Head) -> frozenset[bytes]:
    """Fields that Connection names: of this connection alone too (RFC 9110 §7.6.1). Never those by which the gateway
    has read the request: without them a worker would read another one."""
    named = (name.strip().lower() for key, value in head.headers if key == b"connection" for name in value.split(b","))
    return frozenset(named) - _READ_HERE


def _timeout_field(nanoseconds: int) -> bytes:
    """The time left as a literal that can follow any encoded block (RFC 7541 §6.2.2: without indexing)."""
    value = b"%.3f" % max(0.001, nanoseconds / 1e6)
    return b"\x00\x14x-request-timeout-ms%c%s" % (len(value), value)


#: Headers of an answer → those that go back, found by identity: memoised heads share theirs.
_returned: dict[int, tuple[Headers, Headers]] = {}


def returned(headers: Headers, keep_load: bool) -> Headers:
    """An answer's headers as the caller gets them."""
    found = _returned.get(id(headers))
    if found is not None and found[0] is headers and not keep_load:
        return found[1]
    kept = tuple(
        header for header in headers if header[0] not in _NOT_RETURNED or (keep_load and header[0] == ORCA_HEADER)
    )
    small = sum(len(name) + len(value) for name, value in headers) <= _MAX_RETURNED_BYTES
    if not keep_load and small and not _is_stream(headers):
        if len(_returned) >= 1024:
            _returned.clear()
        _returned[id(headers)] = (headers, kept)
    return kept


class HttpRequest(CallerRequest):
    """One HTTP request."""

    def __init__(self, route: HttpRoute, exchange: Exchange, served: ServedModel) -> None:
        Request.__init__(self, exchange.arrived)
        self.gateway = route.gateway
        self.exchange = exchange
        self.served = served
        self.demand = served.plain_demand
        self.route = route
        if route.agent:
            self.agent = route.agent
        if route.trace_id:
            self.trace_id = route.trace_id
        if route.caller_ids:
            self.caller_ids = route.caller_ids
        if not route.is_plain:
            self.version, self.asked_epoch, self.kind = route.version, route.epoch, route.kind
        exchange.owner = self
        timeout = route.timeout_ns
        key = served.affinity_key(exchange.head) if served.affinity.header else b""
        priority = served.priority
        starts_sequence = False
        body = exchange.body
        length = route.json_length
        start = bytes(body[:length]) if 0 <= length < GLANCE else None
        if start not in _plain_starts:
            special = self._glance(start)
            if special is not None:
                sequence, own_timeout, own_priority, starts_sequence = special
                priority = own_priority or priority
                if own_timeout and (not timeout or own_timeout < timeout):
                    timeout = own_timeout
                if sequence and served.rules.affinity.sequence:
                    # A sequence lives on one worker, and none of its requests may run twice.
                    key = served.affinity.key(sequence)
                    self.kind = Kind.SEQUENCE
        grant = exchange.head.grant
        if grant is not None and grant.limits_priority:
            if route.parameters is not None:
                priority = route.asked_priority or priority
            else:
                priority = asked_priority(body, length if length >= 0 else len(body)) or priority
        timeout = timeout or served.deadline_ns
        if timeout:
            self.deadline = self.arrived + timeout
        prompt = self.read_prompt() if served.reads_prompts else b""
        if timeout or key or priority != served.priority or prompt:
            self.demand = Demand(key, self.deadline, 1, priority, (), starts_sequence, prompt)

    def _glance(self, start: bytes | None) -> Parameters | None:
        """The parameters of a JSON part that may have some."""
        route, body = self.route, self.exchange.body
        if route.parameters is not None:
            return route.parameters
        if start is None:
            return read_bounded(body, len(body) if route.json_length < 0 else min(route.json_length, len(body)))
        if may_contain(start):
            return read(start)
        if len(start) == route.json_length:
            _remember_plain(start)
        return None

    def opening_bytes(self) -> bytes:
        body, length = self.exchange.body, self.route.json_length
        if length < 0:
            length = len(body)
        if length <= _ID_BYTES:
            return bytes(body[:length])
        start = bytes(body[:_ID_BYTES])
        # Some clients write the id last, behind tensors.
        return start if b'"id"' in start else start + bytes(body[length - _ID_BYTES : length])

    def read_prompt(self) -> bytes:
        """How the prompt begins, for policies that go by it."""
        return b""

    def copy(self, served: ServedModel) -> HttpRequest:
        return HttpRequest(self.route.for_model(served.name), DiscardingExchange(self.exchange), served)

    def offer(self, samples: Samples) -> None:
        samples.offer(HTTP, self.route.path, self.exchange.head.headers, self.exchange.body)

    def take_request_id(self) -> str:
        return request_ids.of_http(self.exchange.body, self.route.json_length)

    def take_fingerprint(self) -> bytes:
        return fingerprints.of_http(self.route.path, self.exchange.body, self.route.json_length)

    def send(self, attempt: UpstreamAttempt) -> None:
        body = self.exchange.body
        length = len(body)
        endpoint = attempt.replica.endpoint
        connections = endpoint.handle.connections
        if endpoint.reports and (endpoint.in_flight > _SHARED_FROM or connections.is_crowded) and self.route.shareable:
            attempt.shared = True
            block = self.route.outgoing_block(attempt.replica_set, attempt.asks)
            if self.deadline != NEVER:
                block += _timeout_field(self.deadline - now_ns())
            if attempt.division is not None:
                block += division_field(attempt.division)
            if attempt.trace_parent:
                block += trace_parent_field(attempt.trace_parent)
            if length < _JOIN_LIMIT:
                attempt.sent = connections.open_whole(block, body, attempt)
            else:
                attempt.sent = connections.open_stream(block, (body,), attempt)
            return
        head = self.route.outgoing(attempt.replica_set, attempt.asks)
        if attempt.division is not None:
            head += division_line(attempt.division)
        if attempt.trace_parent:
            head += b"traceparent: %s\r\n" % attempt.trace_parent
        if self.deadline == NEVER:
            head = b"%scontent-length: %d\r\n\r\n" % (head, length)
        else:
            left = max(0.001, (self.deadline - now_ns()) / 1e6)
            head = b"%sx-request-timeout-ms: %.3f\r\ncontent-length: %d\r\n\r\n" % (head, left, length)
        attempt.sent = connections.send(head, (body,) if length else (), attempt)

    def outcome(self, attempt: UpstreamAttempt) -> Outcome:
        if not attempt.shared and attempt.sent is not None:
            # Its connection takes the next request.
            attempt.replica.endpoint.handle.connections.release(attempt.sent)
        status = attempt.status
        known = _returned.get(id(attempt.headers))
        if known is not None and known[0] is attempt.headers:
            attempt.returned = known[1]
        elif not attempt.streaming and self._is_foreign(attempt):
            return Outcome.FOREIGN
        if status < 404:
            return _ANSWERED
        if status in _REJECTIONS or (status == 404 and self.is_version_gone(attempt)):
            # The endpoint of a version that is gone cannot have run it.
            return Outcome.NOT_BEGUN if status == 404 or is_marked(attempt.headers) else Outcome.REJECTED
        return Outcome.FAILED if status in _FAILURES else Outcome.ANSWERED

    def _is_foreign(self, attempt: UpstreamAttempt) -> bool:
        """Whether an answer does not follow the protocol; heads that went back before have been checked."""
        attempt.foreign = foreign_http(attempt.status, attempt.headers, attempt.body, self.route.is_inference)
        return bool(attempt.foreign)

    def is_version_gone(self, attempt: UpstreamAttempt) -> bool:
        return attempt.status in (404, 503) and bool(attempt.replica_set.version) and not self.route.version

    def is_late(self, attempt: UpstreamAttempt) -> bool:
        return attempt.status == 504

    def load_report(self, attempt: UpstreamAttempt) -> LoadReport | None:
        for name, value in attempt.headers:
            if name == ORCA_HEADER:
                try:
                    return report_of_header(value)
                except IsochroneError:
                    return None
        return None

    def answer(self, attempt: UpstreamAttempt) -> None:
        if attempt.streaming:
            self._end_streaming(attempt)
            return
        headers = attempt.returned
        if headers is None or not self.route.returns_plainly:
            headers = self._returned(attempt)
        self.exchange.respond(attempt.status, headers, attempt.body)

    def _returned(self, attempt: UpstreamAttempt) -> Headers:
        """The headers of the answer: the worker's, and what the request asks for."""
        route = self.route
        headers = returned(attempt.headers, route.wants_load)
        if route.wants_load:
            leaving = self.gateway.is_leaving
            headers = tuple(
                (name, relayed(value, leaving)) if name == ORCA_HEADER else (name, value) for name, value in headers
            )
        if route.wants_timing:
            headers = through_gateway(headers, now_ns() - self.arrived)
        if route.explains:
            headers = (*headers, (PLACEMENT_HEADER, explanation(self, attempt, self.gateway.clock())))
        if route.epoch is not None:
            headers = (*headers, (EPOCH_HEADER, self.answered_epoch(route.epoch)))
        return headers

    def reject(self, error: IsochroneError) -> None:
        respond_error(self.exchange, error)

    # An answer that is passed on as it comes.

    def streams_answer(self, attempt: UpstreamAttempt) -> bool:
        if self.route.is_inference:
            return False  # one result, in chunks or not: it is checked before any of it goes back
        headers = attempt.headers
        found = _returned.get(id(headers))
        # An answer with a head that went back before in one piece is no stream.
        return attempt.status < 400 and (found is None or found[0] is not headers) and _is_stream(headers)

    def begin_streaming(self, attempt: UpstreamAttempt) -> None:
        if (b"content-length", b"%d" % attempt.size) in attempt.headers:
            return  # it is whole already: it goes back in one piece, with its length
        if self._is_foreign(attempt):
            attempt.cancel()
            self.gateway.answered_foreign(attempt)
            return
        self.gateway.streaming(attempt)
        self.exchange.start(attempt.status, self._returned(attempt))
        pieces, attempt.body = attempt.body, []
        for piece in pieces:
            self.pass_on(attempt, piece)

    def pass_on(self, attempt: UpstreamAttempt, data: Buffer) -> None:
        exchange = self.exchange
        exchange.write([data])
        if self.served.counts_tokens:
            self.charge_passed(data)
        if exchange.is_congested:
            sent = launched(attempt)
            if attempt.shared:
                stream = cast("ClientStream", sent)
                stream.hold_window()
                exchange.on_writable = stream.release_window
            else:
                connection = cast("Call", sent).connection
                connection.pause_reading()
                exchange.on_writable = connection.resume_reading

    def _end_streaming(self, attempt: UpstreamAttempt) -> None:
        if not attempt.shared and self.exchange.on_writable is not None:
            # Paused for a slow reader: the connection takes other requests from now on, and must read their answers.
            self.exchange.on_writable = None
            cast("Call", launched(attempt)).connection.resume_reading()
        self.exchange.end()

    def cut_off(self, error: IsochroneError) -> None:
        self.exchange.abort()


class _Remembered:
    """Bytes of the JSON parts that are remembered."""

    size: ClassVar[int] = 0


def _remember_plain(start: bytes) -> None:
    """Once for all heads and connections: what a JSON part says does not depend on them."""
    if _Remembered.size + len(start) > _MAX_STARTS_BYTES:
        _plain_starts.clear()
        _Remembered.size = 0
    if start not in _plain_starts:
        _plain_starts.add(start)
        _Remembered.size += len(start)


def _is_stream(headers: Headers) -> bool:
    for name, value in headers:
        if name == b"transfer-encoding" or (name == b"content-type" and value.startswith(b"text/event-stream")):
            return True
    return False
