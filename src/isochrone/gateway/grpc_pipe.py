"""A streaming gRPC call to one worker: ModelStreamInfer, and the streams of health and reflection.

The first message tells the model and so the worker; all later ones follow it there. Each message of an inference stream
is stamped with the version the stream was admitted with; a model that a later message is the first to name is admitted
then, and waits for a switch of versions like a first one. Both directions wait for each other's windows: a slow reader
on one side stops the sender on the other.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from isochrone.clock import NEVER, now_ns
from isochrone.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    IsochroneError,
    MalformedRequest,
    Unavailable,
)
from isochrone.gateway.connections import Waiting
from isochrone.gateway.grpc_forward import GrpcRoute, has_status, returned_block, timeout_field
from isochrone.gateway.grpc_messages import Opening, read_opening
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.replicas import Endpoint, Replica
from isochrone.gateway.traffic.affinity import SEQUENCE_MARK
from isochrone.protocol.compression.codec import Inflation, is_identity
from isochrone.protocol.compression.inflating import inflate
from isochrone.protocol.grpc.calls import error_block, fail, unpack
from isochrone.protocol.grpc.message_reader import MessageReader
from isochrone.wire.budget import SMALL
from isochrone.wire.exchange import Buffer, Consumer, Exchange, Head, Headers

if TYPE_CHECKING:
    from isochrone.gateway.gateway import Gateway
    from isochrone.gateway.replica_set import ReplicaSet
    from isochrone.gateway.served_model import ServedModel
    from isochrone.wire.http2.client import ClientStream
    from isochrone.wire.http2.server_stream import ServerStream


class PipeRoute(GrpcRoute):
    """Streaming calls with one head."""

    streaming = True

    def __init__(self, gateway: Gateway, head: Head) -> None:
        super().__init__(gateway, head, idempotent=False)

    def open(self, exchange: Exchange) -> Consumer:
        return GrpcPipe(self, cast("ServerStream", exchange))


class GrpcPipe:
    """One call: a consumer of the caller's messages, and a receiver of the worker's."""

    def __init__(self, route: PipeRoute, stream: ServerStream) -> None:
        self._route = route
        self._gateway = route.gateway
        self._stream = stream
        self._reader = MessageReader(route.gateway.limits.max_body_bytes, stream)
        timeout = route.call.timeout_ns
        self.deadline = stream.arrived + timeout if timeout else NEVER
        self._replica_set: ReplicaSet | None = None
        self._replica: Replica | None = None
        self._tried: tuple[Replica, ...] = ()
        self._load = 0
        self._served: ServedModel | None = None
        self._key = b""
        self._sent_at = 0
        self._upstream: ClientStream | None = None
        #: By model and version as messages name them: what is appended to those, the version where they bring none.
        self._stamps: dict[tuple[bytes, bytes], bytes] = {}
        #: All that came, while there is no connection to send it on, and as long as another worker may still take the
        #: call: until this one answers, or it is too much. None: from then on.
        self._kept: list[bytes] | None = []
        self._kept_size = 0
        #: Bytes of messages that are not on their way to the worker yet, or that another one may still need.
        self._held = 0
        #: Messages that came while the model's version was being switched, and whether the caller ended meanwhile.
        #: None: nothing waits.
        self._parked: list[tuple[int, Buffer]] | None = None
        self._ended_parked = False
        #: A large compressed message that a thread works on; what came behind it waits, the caller's end included.
        self._inflation: Inflation | None = None
        self._ended = False
        #: Something was sent either way since the gateway, stopping, last looked.
        self._active = True
        self._answer_headers: Headers = ()
        self._headers_sent = False
        self._over = False
        stream.owner = self
        self._gateway.pipes.add(self)
        self._gateway.wake()

    # The caller's side.

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._active = True
        try:
            self._reader.feed(data)
            self._read()
        except IsochroneError as error:
            self._refuse(error)

    def _read(self) -> None:
        """Takes the messages that have come."""
        while not self._over and self._inflation is None and (message := self._reader.take()) is not None:
            flag, payload = message
            if flag == 1 and not is_identity(self._route.call.encoding):
                # The version is stamped on every message, so compressed ones go on as plain ones.
                packed = len(payload)
                inflation = Inflation(self._route.call.encoding, payload, self._gateway.limits.max_body_bytes)
                body = inflate(inflation, self._reader, partial(self._inflated, packed))
                if body is None:
                    self._inflation = inflation
                    self._stream.hold_window()
                    return
                if len(body) <= SMALL:
                    self._reader.keep(len(body))
                self._reader.give_back(packed)
                flag, payload = 0, body
            self._held += len(payload)
            self._take(flag, payload)

    def _inflated(self, packed: int, found: bytearray | IsochroneError) -> None:
        self._inflation = None
        if self._over:
            return
        self._reader.give_back(packed)
        self._active = True
        try:
            if isinstance(found, IsochroneError):
                raise found
            self._held += len(found)
            self._take(0, found)
            self._read()
        except IsochroneError as error:
            self._refuse(error)
            return
        if self._inflation is None and self._parked is None:
            self._go_on()

    def _go_on(self) -> None:
        """Nothing of the caller's waits any more."""
        if self._upstream is None or not self._upstream.is_congested:
            self._stream.release_window()
        if self._ended_parked:
            self.ended()

    def ended(self) -> None:
        if self._over:
            return
        if self._parked is not None or self._inflation is not None:
            self._ended_parked = True
            return
        if not self._reader.is_empty:
            self._refuse(MalformedRequest("the stream ends inside a message"))
        elif self._replica is None:
            try:
                self._place(Opening(b""))
            except IsochroneError as error:
                self._refuse(error)
                return
            self._end_upstream()
        else:
            self._end_upstream()

    def shed(self) -> None:
        """Both windows bound what waits here."""

    def stopping(self) -> None:
        """Which messages belong together is the worker's affair: a call that has been silent for a while is ended."""
        if not self._active and not self._over and self._inflation is None:
            self._refuse(Unavailable("the gateway is stopping"))
        self._active = False

    def abandoned(self) -> None:
        if self._inflation is not None:
            self._inflation.abandoned = True
        self._settle(None)
        if self._upstream is not None:
            self._upstream.cancel()

    def _resume(self) -> None:
        """The switch of versions is over."""
        parked, self._parked = self._parked or [], None
        if self._over:
            return
        try:
            for flag, payload in parked:
                self._take(flag, payload)
        except IsochroneError as error:
            self._refuse(error)
            return
        if self._parked is None and self._inflation is None:
            self._go_on()

    def _refuse_parked(self, error: IsochroneError) -> None:
        self._parked = None
        if not self._over:
            self._refuse(error)

    def _is_parked(self, flag: int, payload: Buffer) -> bool:
        """Whether a message waits for a switch of versions."""
        if self._parked is None:
            opening = read_opening(
                unpack(flag, payload, self._route.call.encoding, self._gateway.limits.max_body_bytes), 0
            )
            held = self._gateway.fleet.model(opening.model.decode("utf-8", "replace")).held
            # A stream stays with the versions it was admitted with.
            if held is None or opening.version or (opening.model, b"") in self._stamps:
                return False
            held.wait_stream(self._resume, self._refuse_parked)
            self._parked = []
            self._stream.hold_window()
        self._parked.append((flag, payload))
        return True

    def _take(self, flag: int, payload: Buffer) -> None:
        if self._gateway.fleet.holding and self._is_parked(flag, payload):
            return
        stamp = b""
        payload = unpack(flag, payload, self._route.call.encoding, self._gateway.limits.max_body_bytes)
        opening = read_opening(payload, 0)
        if self._replica is None:
            self._place(opening)
        if not opening.version or self._gateway.fleet.is_led:
            stamp = self._stamp(opening.model, opening.version)
        size = len(payload) + len(stamp)
        framed = b"".join((b"\0", size.to_bytes(4, "big"), payload, stamp))
        if self._kept is not None:
            self._kept.append(framed)
            self._kept_size += len(framed)
            if self._kept_size > self._gateway.limits.stream_window:
                if self._upstream is None:
                    self._stream.hold_window()
                else:
                    self._kept = None
        if self._upstream is None:
            return
        self._upstream.send_data(framed)
        self._look_after(self._upstream)

    def _place(self, opening: Opening) -> None:
        model, version = opening.model, opening.version
        served = self._served = self._gateway.fleet.model(model.decode("utf-8", "replace"))
        served.requests += 1
        served.budget.unbooked += 1
        text = version.decode("utf-8", "replace")
        replica_set = self._replica_set = served.replica_set(text) if text else served.choose(self._stream.head)
        now = now_ns()
        key = self._key = served.affinity.key(opening.sequence) or served.affinity_key(self._stream.head)
        demand = Demand(key, self.deadline, starts_sequence=opening.starts_sequence)
        if key.startswith(SEQUENCE_MARK):
            home = served.sequences.home(demand, replica_set)
            replica = home.replica if home is not None else None
            replica_set = self._replica_set = home.replica_set if home is not None else replica_set
        else:
            replica = replica_set.balancer.choose(demand, now)
        if replica is None:
            raise served.nobody(replica_set)
        self._stamps[model, version] = b"" if version else replica_set.stamp
        self._open(replica_set, replica, now)

    def _open(self, replica_set: ReplicaSet, replica: Replica, now: int) -> None:
        self._replica = replica
        self._tried = (*self._tried, replica)
        self._load = replica_set.balancer.sent(replica, now)
        self._sent_at = now
        self._upstream = None
        block = self._route.plain
        if self.deadline != NEVER:
            block += timeout_field(self.deadline - now)
        block += replica_set.stage_field
        sent = replica.endpoint.handle.connections.open_stream(block, (), self, end=False)
        if isinstance(sent, Waiting):
            sent.on_launched = self.connected
        else:
            self.connected(sent)

    def _stamp(self, model: bytes, version: bytes) -> bytes:
        """The version a message without one gets: of its own model, the same for the whole stream."""
        stamp = self._stamps.get((model, version))
        if stamp is None:
            served = self._gateway.fleet.model(model.decode("utf-8", "replace"))
            if self._gateway.fleet.is_led:
                stamp = self._committed_stamp(served, version)
            else:
                serves = self._replica is not None and self._replica.endpoint.address in served.current.replicas
                stamp = served.current.stamp if serves else b""
            if len(self._stamps) < 64:
                self._stamps[model, version] = stamp
        return stamp

    def _committed_stamp(self, served: ServedModel, version: bytes) -> bytes:
        """Whether the worker has what is committed is for it to say: unstamped it would run whatever is its newest."""
        replica_set = (
            served.replica_set(version.decode("utf-8", "replace")) if version else served.choose(self._stream.head)
        )
        sent = self._replica_set.stages if self._replica_set is not None else b""
        if replica_set.stages and replica_set.stages != sent:
            # The head carries them, and it has been sent.
            raise InvalidArgument(
                f"model '{served.name}' is an ensemble; a stream sends the versions of stages once, when it begins: "
                "open another stream for it"
            )
        return b"" if version else replica_set.stamp

    def _writable(self) -> None:
        """The worker's side takes more; what is parked goes on first."""
        if self._parked is None:
            self._stream.release_window()
            self._give_back()

    def _look_after(self, upstream: ClientStream) -> None:
        """Something was sent to the worker: the caller waits, and its bytes count, until it has gone."""
        if upstream.is_congested:
            self._stream.hold_window()
        if upstream.is_congested or upstream.unsent:
            upstream.on_writable = self._writable
        else:
            self._give_back()

    def _give_back(self) -> None:
        """Nothing waits to be sent: messages count no longer, unless another worker may still need them."""
        if self._kept is None and self._parked is None and (self._upstream is None or not self._upstream.unsent):
            held, self._held = self._held, 0
            self._reader.give_back(held)

    def connected(self, upstream: ClientStream) -> None:
        """A stream to the worker is open."""
        self._upstream = upstream
        if self._over:
            upstream.cancel()
            return
        for framed in self._kept or ():
            upstream.send_data(framed)
        if self._kept_size > self._gateway.limits.stream_window:
            self._kept = None
        self._look_after(upstream)
        if not upstream.is_congested:
            self._writable()
        if self._ended:
            upstream.send_data(b"", True)

    def _end_upstream(self) -> None:
        self._ended = True
        if self._upstream is not None and not self._upstream.local_done:
            self._upstream.send_data(b"", True)

    # The worker's side.

    def head(self, status: int, headers: Headers) -> None:
        if status != 200:
            self._refuse(ConnectionLost(f"the worker answered with HTTP status {status}, which is no gRPC answer"))
            if self._upstream is not None:
                self._upstream.cancel()
            return
        # A call that ends at once comes as one block, which ``complete`` writes.
        self._answer_headers = headers
        self._kept = None
        self._give_back()

    def data(self, data: Buffer) -> None:
        stream = self._stream
        if self._over or stream.local_done:
            return
        self._active = True
        self._send_headers()
        stream.send_data(data)
        if stream.is_congested and self._upstream is not None:
            self._upstream.hold_window()
            stream.on_writable = self._upstream.release_window

    def _send_headers(self) -> None:
        if not self._headers_sent:
            self._headers_sent = True
            self._stream.send_headers(returned_block(200, self._answer_headers), False)

    def complete(self, trailers: Headers) -> None:
        if self._over:
            return
        if not has_status(trailers or self._answer_headers) or (self._headers_sent and not trailers):
            self.failed(ConnectionLost("it ended the call without a grpc-status, which is no gRPC answer"))
            return
        self._settle(False)
        if trailers:
            self._send_headers()
            self._stream.end_with_trailers(returned_block(0, trailers))
        else:
            self._stream.end_with_trailers(returned_block(200, self._answer_headers))

    def failed(self, error: IsochroneError) -> None:
        if self._over:
            return
        if isinstance(error, ConnectionLost) and error.unprocessed and self._move():
            return
        address = self._replica.endpoint.address if self._replica is not None else "?"
        self._settle(True)
        self._fail(ConnectionLost(f"worker {address}: {error}"))

    def _move(self) -> bool:
        """The worker never began the call: another one gets all that came of it."""
        served, replica_set, replica, now = self._served, self._replica_set, self._replica, now_ns()
        if served is None or replica_set is None or replica is None or self._kept is None or now >= self.deadline:
            return False
        retries = served.rules.retries
        if not retries.enabled or len(self._tried) >= retries.attempts:
            return False
        sequence = self._key.startswith(SEQUENCE_MARK)
        if sequence:
            other = served.sequences.next_home(self._key, replica_set, self._tried, lost=True)
        else:
            other = replica_set.balancer.choose(Demand(self._key, self.deadline, avoid=self._tried), now)
        if other is None or other in self._tried:
            return False
        if not served.budget.take(now):
            served.retries_denied += 1
            return False
        self._leave(replica_set, replica, now)
        served.retries += 1
        if sequence:
            served.sequences.settle(self._key, replica_set, other)
        self._open(replica_set, other, now)
        return True

    # Both.

    def look(self, now: int) -> None:
        """Called every few ms: is its time up?"""
        if now >= self.deadline and not self._over:
            self._settle(None)
            if self._upstream is not None:
                self._upstream.cancel()
            self._fail(DeadlineExceeded("the call's deadline has passed"))

    def endpoint_lost(self, endpoint: Endpoint) -> None:
        """The worker does not answer any more."""
        if self._replica is not None and self._replica.endpoint is endpoint and not self._over:
            if self._upstream is not None:
                self._upstream.cancel()
            self.failed(ConnectionLost("it does not answer health checks"))

    def _refuse(self, error: IsochroneError) -> None:
        self._settle(None)
        if self._upstream is not None:
            self._upstream.cancel()
        self._fail(error)

    def _fail(self, error: IsochroneError) -> None:
        if self._headers_sent:
            self._stream.end_with_trailers(error_block(error.grpc_status, error.message, trailers_only=False))
        else:
            fail(self._stream, error)

    def _settle(self, failed: bool | None) -> None:
        """The call is over. None: it says nothing of the worker. A stream's length is no latency either."""
        self._over = True
        self._stream.owner = None
        self._gateway.pipes.discard(self)
        replica, replica_set = self._replica, self._replica_set
        if replica is None or replica_set is None:
            return
        now = now_ns()
        if failed:
            self._leave(replica_set, replica, now)
        elif failed is None:
            replica_set.balancer.dropped(replica, self._sent_at, now)
        else:
            # It answered: that much is known of it.
            replica.dropped()
            replica_set.balancer.policy.ended(replica, int(replica.latency_ns), False, now)

    def _leave(self, replica_set: ReplicaSet, replica: Replica, now: int) -> None:
        """A worker has failed the call."""
        replica_set.balancer.ended(replica, self._load, now - self._sent_at, True, now)
        if self._served is not None:
            self._served.failed(replica, now, lost=True)
