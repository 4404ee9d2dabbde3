"""ModelStreamInfer: many requests and answers on one call.

An error of one request is sent in the stream with the request's id. Ordinary models answer in the order of the
requests; decoupled models send any number of responses as they come. A half-close lets requests in progress finish; a
cancel reaches the scheduler. A client that sends faster than it is answered gets no more window until it has caught up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tritonclient.grpc import service_pb2

from isochrone.clock import now_ns
from isochrone.errors import IsochroneError, MalformedRequest, Unavailable
from isochrone.protocol.back_pressure import WaitingProducers
from isochrone.protocol.compression.codec import Inflation, is_identity
from isochrone.protocol.compression.inflating import inflate
from isochrone.protocol.grpc.answers import JOIN_LIMIT, id_field, plain_answer, render
from isochrone.protocol.grpc.calls import (
    OK_TRAILERS,
    RESPONSE_HEADERS,
    CallHead,
    error_block,
    stopping_block,
    unexpected,
    unpack,
)
from isochrone.protocol.grpc.decoder import InferDecoder
from isochrone.protocol.grpc.message_reader import MessageReader
from isochrone.protocol.grpc.pinned_plans import pinned_plan
from isochrone.protocol.grpc.plan import GrpcPlan
from isochrone.protocol.grpc.routing_fields import request_id as id_of
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters
from isochrone.protocol.shared_memory_requests import infer_with_regions, with_shared_memory
from isochrone.varint import encode_varint
from isochrone.wire.bodies.budget import SMALL
from isochrone.wire.exchange import Buffer, Consumer, Exchange, Route

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.protocol.services.service import InferenceService

#: Limits on the requests of one stream in progress, and on their bytes; at either limit the window stays closed.
_MAX_OUTSTANDING = 256
_MAX_OUTSTANDING_BYTES = 8 * 1024 * 1024
#: Bytes of answers that may wait for the client while its connection holds more than its share of memory.
_MAX_UNSENT = 1024 * 1024
_FINAL = "triton_final_response"
_WANTS_EMPTY_FINAL = "triton_enable_empty_final_response"
#: Field 2 of ModelStreamInferResponse: infer_response.
_INFER_RESPONSE = b"\x12"


class StreamInferRoute(Route):
    streaming = True

    def __init__(self, service: InferenceService, max_body_bytes: int, decoder: InferDecoder, call: CallHead) -> None:
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._decoder = decoder
        self._call = call

    def open(self, exchange: Exchange) -> Consumer:
        return InferStream(exchange, self._service, self._max_body_bytes, self._decoder, self._call)


class InferStream:
    """One ModelStreamInfer call."""

    def __init__(
        self, stream: Any, service: InferenceService, max_body_bytes: int, decoder: InferDecoder, call: CallHead
    ) -> None:
        self.stream = stream
        self.service = service
        self.call = call
        self._limit = max_body_bytes
        self._reader = MessageReader(max_body_bytes, stream)
        self._decoder = decoder
        self._pin = call.pin
        #: Requests not yet over, oldest first.
        self._outstanding: deque[StreamInferRequest] = deque()
        self._outstanding_bytes = 0
        #: ``_read`` is running; it also takes the messages for which an answer makes room.
        self._reading = False
        #: Decoupled models that wait until the client has read earlier responses.
        self._producers = WaitingProducers(stream)
        #: No further message is taken until the client has read its answers.
        self._awaits_reader = False
        #: A large compressed message that a thread decompresses; later messages wait.
        self._inflation: Inflation | None = None
        self._half_closed = False
        self._stopping = False
        #: Something came since the server, stopping, last looked.
        self._active = True
        self._over = False
        self._opened = stream.arrived
        stream.owner = self
        stream.send_headers(RESPONSE_HEADERS, False)

    # Called by the wire.

    def data_received(self, data: bytes) -> None:
        if not self._over:
            self._active = True
            self._reader.feed(data)
            self._read()

    def ended(self) -> None:
        self._half_closed = True
        self._read()
        self._settle()

    def shed(self) -> None:
        error = Unavailable(self.stream.no_memory())
        for request in list(self._outstanding):
            # Decoupled models wait for their reader.
            if not request.over and not request.decoupled:
                request.shed(error)

    def stopping(self) -> None:
        """Called now and then while the server stops. A call that has just been used may be ended by its client now:
        only one that has been silent is ended from here."""
        if not self._active:
            self._stopping = True
            self._settle()
        self._active = False

    @property
    def _has_room(self) -> bool:
        return (
            len(self._outstanding) < _MAX_OUTSTANDING
            and self._outstanding_bytes < _MAX_OUTSTANDING_BYTES
            and self._inflation is None
            and (self.stream.unsent <= _MAX_UNSENT or not self.stream.connection.share.is_exceeded)
        )

    def _read(self) -> None:
        """Take received requests, as far as there is room."""
        if self._reading:
            return
        self._reading = True
        try:
            while self._has_room and not self._over:
                try:
                    message = self._reader.take()
                except Unavailable as error:
                    self._reject("", error)
                    continue
                if message is None:
                    break
                self._take(*message)
        except IsochroneError as error:
            self._close(error)
        finally:
            self._reading = False
        if not self._over and not self._has_room:
            self.stream.hold_window()
            if self.stream.unsent > _MAX_UNSENT and not self._awaits_reader:
                self._awaits_reader = True
                self._producers.add(self._caught_up)

    def abandoned(self) -> None:
        self._over = True
        if self._inflation is not None:
            self._inflation.abandoned = True
        for request in self._outstanding:
            request.cancelled = True
        self._outstanding.clear()
        self._outstanding_bytes = 0
        # The client will not read again: waiting producers must check ``cancelled`` now.
        self._producers.resume()

    # Back-pressure.

    def when_writable(self, callback: Callable[[], None]) -> None:
        self._producers.add(callback)

    def _caught_up(self) -> None:
        """The client has read its answers: take further requests, or end the call."""
        self._awaits_reader = False
        self._settle()

    # Requests.

    def _take(self, flag: int, payload: Buffer) -> None:
        arrived = now_ns()
        if flag != 1 or is_identity(self.call.encoding):
            self._take_body(arrived, flag, payload)
            return
        packed = len(payload)
        try:
            inflation = Inflation(self.call.encoding, payload, self._limit)
            body = inflate(inflation, self._reader, lambda found: self._inflated(arrived, packed, found))
        except IsochroneError as error:
            self._reader.give_back(packed)
            self._reject("", error)
            return
        if body is None:
            self._inflation = inflation
            return
        if len(body) <= SMALL:
            self._reader.keep(len(body))
        self._reader.give_back(packed)
        self._take_body(arrived, 0, body)

    def _inflated(self, arrived: int, packed: int, found: bytearray | IsochroneError) -> None:
        self._inflation = None
        self._reader.give_back(packed)
        if isinstance(found, IsochroneError):
            self._reject("", found)
        else:
            self._take_body(arrived, 0, found)
            self._settle()

    def _reject(self, request_id: str, error: IsochroneError) -> None:
        """Answer one request with an error; the stream continues."""
        self._outstanding.append(_failed(self, request_id, error))
        self._settle()

    def _take_body(self, arrived: int, flag: int, payload: Buffer) -> None:
        request_id = ""
        try:
            body = unpack(flag, payload, self.call.encoding, self._limit)
            plan, request_id, inputs = self._decoder.decode(body, 0)
            if self._pin is not None:
                plan = pinned_plan(plan, self._pin)
            kind = SharedMemoryStreamRequest if plan.regions else StreamInferRequest
            request = kind(self, plan, request_id, inputs, arrived)
            request.deadline = self.call.deadline(self._opened, 0) if self.call.timeout_ns else request.deadline
            if plan.timeout_ns:
                request.deadline = min(request.deadline, arrived + plan.timeout_ns)
            request.decoupled = self.service.is_decoupled(plan.model_name, plan.model_version)
        except Exception as error:
            self._reader.give_back(len(payload))
            if not request_id and flag == 0:
                request_id = id_of(payload).decode("utf-8", "replace")
            self._reject(request_id, error if isinstance(error, IsochroneError) else unexpected(error))
            return
        request.size = len(payload)
        self._outstanding_bytes += request.size
        self._outstanding.append(request)
        try:
            if isinstance(request, SharedMemoryStreamRequest):
                infer_with_regions(self.service, request, plan.choices)
            else:
                self.service.infer(request)
        except IsochroneError as error:
            request.fail(error)
        except Exception as error:
            request.fail(unexpected(error))

    def write(self, parts: list[Buffer]) -> None:
        """One ModelStreamInferResponse."""
        if not self._over:
            size = sum(len(part) for part in parts)
            self.stream.send_data(b"".join([b"\0", size.to_bytes(4, "big"), *parts]))

    def _settle(self) -> None:
        """Send the answers that are ready, in order; end the call after the last one."""
        outstanding = self._outstanding
        while outstanding:
            first = outstanding[0]
            for parts in first.ready:
                self.write(parts)
            first.ready.clear()
            if not first.over:
                break
            outstanding.popleft()
            self._answered(first)
        self._release_window()
        if not outstanding and not self._over and not self._reading and self._inflation is None:
            self._end_if_done()

    def _answered(self, request: StreamInferRequest) -> None:
        self._outstanding_bytes -= request.size
        self._reader.give_back(request.size)

    def _end_if_done(self) -> None:
        """With no request in progress: end the call if no further request will come."""
        if not self._has_room and not self._reader.is_empty:
            return  # until the client has read its answers
        if self._half_closed:
            if not self._reader.is_empty:
                self._close(MalformedRequest("the stream ends inside a message"))
                return
            self._over = True
            self.stream.end_with_trailers(OK_TRAILERS)
        elif self._stopping:
            self._over = True
            self.stream.end_with_trailers(stopping_block())

    def progress(self, request: StreamInferRequest) -> None:
        """A request has a response to send, or has ended."""
        if request.decoupled and request is not self._outstanding[0]:
            # Decoupled answers keep order within a request, not between requests.
            for parts in request.ready:
                self.write(parts)
            request.ready.clear()
            if request.over:
                self._outstanding.remove(request)
                self._answered(request)
                self._release_window()
            return
        self._settle()

    def _release_window(self) -> None:
        if (
            len(self._outstanding) < _MAX_OUTSTANDING // 2
            and self._outstanding_bytes < _MAX_OUTSTANDING_BYTES // 2
            and not self._over
        ):
            self._read()
            if self._has_room:
                self.stream.release_window()

    def _close(self, error: IsochroneError) -> None:
        self.abandoned()
        self.stream.end_with_trailers(error_block(error.grpc_status, error.message, trailers_only=False))


class StreamInferRequest(InferRequest):
    """One request of a stream."""

    takes_many: ClassVar[bool] = True

    __slots__ = ("decoupled", "over", "ready", "size", "stream")

    def __init__(self, stream: InferStream, plan: GrpcPlan, request_id: str, inputs: Tensors, arrived: int) -> None:
        super().__init__(plan, request_id, inputs, arrived)
        self.stream = stream
        self.decoupled = False
        #: Size of the request's message in bytes.
        self.size = 0
        #: Responses that wait for those of earlier requests.
        self.ready: list[list[Buffer]] = []
        self.over = False

    def exchange_of(self) -> Any:
        return self.stream.stream

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self.stream.call.stages

    @property
    def trace_context(self) -> Mapping[str, str] | None:
        return self.stream.call.trace_context

    @property
    def caller_id(self) -> str:
        return self.stream.call.caller_id

    @property
    def division(self) -> str:
        return self.stream.call.division

    def _render(self, outputs: Tensors, parameters: Parameters) -> list[Buffer]:
        parts: list[Buffer]
        plan: GrpcPlan = self.plan  # type: ignore[assignment]
        if plan.is_plain and outputs and self.served_by.fixed_size:
            answer = plain_answer(self, plan, outputs, parameters)
            if answer is not None and answer.size <= JOIN_LIMIT:
                field = id_field(self.id) if self.id else b""
                parts = [_INFER_RESPONSE + encode_varint(len(field) + answer.size), field]
                for prefix, array in zip(answer.prefixes, outputs.values(), strict=True):
                    parts += (prefix, array.tobytes())
                return parts
        parts, size = render(self, plan, outputs, parameters, self.stream.service)
        return [_INFER_RESPONSE + encode_varint(size), *parts]

    def _answer(self, outputs: Tensors, parameters: Parameters, over: bool) -> None:
        if self.over or self.cancelled:
            return
        try:
            self.ready.append(self._render(outputs, parameters))
        except IsochroneError as error:
            self.fail(error)
            return
        self.over = over
        self.stream.progress(self)

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        if self.plan.parameters.get(_WANTS_EMPTY_FINAL):
            parameters = {**parameters, _FINAL: True}
        self._answer(outputs, parameters, True)

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._answer(self._wanted(outputs), {**parameters, _FINAL: False}, False)

    def finish_with(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._answer(self._wanted(outputs), {**parameters, _FINAL: True}, True)

    def _wanted(self, outputs: Tensors) -> Tensors:
        wanted = self.plan.outputs
        return outputs if wanted is None else {name: outputs[name] for name in wanted if name in outputs}

    def finish(self) -> None:
        if self.plan.parameters.get(_WANTS_EMPTY_FINAL):
            self._answer({}, {_FINAL: True}, True)
        elif not self.over and not self.cancelled:
            self.over = True
            self.stream.progress(self)

    def fail(self, error: IsochroneError) -> None:
        if self.over or self.cancelled:
            return
        self.ready.append(_error_parts(self.id, error))
        self.over = True
        self.stream.progress(self)

    def shed(self, error: IsochroneError) -> None:
        """Answer with an error although the request may be running; its result is dropped."""
        self.ready.append(_error_parts(self.id, error))
        self.over = self.cancelled = True
        self.stream.progress(self)

    @property
    def is_congested(self) -> bool:
        return bool(self.stream.stream.is_congested)

    def when_writable(self, callback: Callable[[], None]) -> None:
        self.stream.when_writable(callback)


#: A request that reads or writes shared memory.
SharedMemoryStreamRequest: Any = with_shared_memory(StreamInferRequest)


def _error_parts(request_id: str, error: IsochroneError) -> list[Buffer]:
    message = service_pb2.ModelStreamInferResponse(error_message=error.message)
    message.infer_response.id = request_id
    return [bytes(message.SerializeToString())]


def _failed(stream: InferStream, request_id: str, error: IsochroneError) -> StreamInferRequest:
    """A request that failed before it was decoded; keeps its place in the order of answers."""
    request = StreamInferRequest(stream, GrpcPlan("", "", (), None), request_id, {}, now_ns())
    request.ready.append(_error_parts(request_id, error))
    request.over = True
    return request
