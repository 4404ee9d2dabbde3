"""ModelInfer: unary inference calls. ``decoder`` decodes the request messages, ``answers`` encodes the responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isochrone.clock import NEVER, now_ns
from isochrone.errors import IsochroneError
from isochrone.protocol.grpc.answers import JOIN_LIMIT, id_field, plain_answer, regional_answer, render
from isochrone.protocol.grpc.calls import (
    OK_TRAILERS,
    RESPONSE_HEADERS,
    CallHead,
    error_block,
    fail,
    message_of,
    unexpected,
)
from isochrone.protocol.grpc.decoder import InferDecoder
from isochrone.protocol.grpc.pinned_plans import pinned_plan
from isochrone.protocol.grpc.plan import Answer, GrpcPlan
from isochrone.protocol.headers import timing
from isochrone.protocol.headers.rejections import mark
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters
from isochrone.protocol.shared_memory_requests import infer_with_regions, with_shared_memory
from isochrone.wire.exchange import Exchange, Route
from isochrone.wire.http2.hpack import encode_literal

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.protocol.services.service import InferenceService
    from isochrone.wire.http2.server_stream import ServerStream


class InferRoute(Route):
    """ModelInfer calls with one header block."""

    def __init__(self, service: InferenceService, max_body_bytes: int, decoder: InferDecoder, call: CallHead) -> None:
        self.service = service
        self._limit = max_body_bytes
        self._decode = decoder.decode
        self.call = call
        self._pin = call.pin

    def handle(self, exchange: Exchange) -> None:
        try:
            body = exchange.body
            # The common case is an uncompressed message that fills the body; ``message_of`` checks the others.
            if len(body) >= 5 and not body[0] and int.from_bytes(body[1:5], "big") == len(body) - 5:
                plan, request_id, inputs = self._decode(body, 5)
            else:
                plan, request_id, inputs = self._decode(*message_of(body, self.call.encoding, self._limit))
            if self._pin is not None:
                plan = pinned_plan(plan, self._pin)
            if plan.regions:
                request = SharedMemoryGrpcRequest(exchange, self, plan, request_id, inputs)
                infer_with_regions(self.service, request, plan.choices)
            else:
                self.service.infer(GrpcInferRequest(exchange, self, plan, request_id, inputs))
        except IsochroneError as error:
            exchange.owner = None
            fail(exchange, error)
        except Exception as error:
            exchange.owner = None
            fail(exchange, unexpected(error))


class GrpcInferRequest(InferRequest):
    """A request from a ModelInfer call; encodes its own answer."""

    __slots__ = ("route", "steps", "stream")

    #: (model, ns) of each step of an ensemble; set with the first (``timing.note_step``).
    steps: list[tuple[str, int]]

    def __init__(self, stream: Any, route: InferRoute, plan: GrpcPlan, request_id: str, inputs: Tensors) -> None:
        # InferRequest's fields are set here, without a call to its __init__: this runs for every request.
        arrived = stream.arrived
        self.plan = plan
        self.id = request_id
        self.inputs = inputs
        if plan.timeout_ns or route.call.timeout_ns:
            self.deadline = route.call.deadline(arrived, plan.timeout_ns)
        else:
            self.deadline = NEVER
        self._cancelled = False
        self.served_by = None
        self.arrived = arrived
        self.enqueued = arrived
        self.dispatched = 0
        self.compute_start = 0
        self.infer_start = 0
        self.infer_end = 0
        self.compute_end = 0
        self.stream: ServerStream = stream
        self.route = route
        stream.owner = self

    def exchange_of(self) -> Any:
        return self.stream

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self.route.call.stages

    @property
    def trace_context(self) -> Mapping[str, str] | None:
        return self.route.call.trace_context

    @property
    def caller_id(self) -> str:
        return self.route.call.caller_id

    @property
    def division(self) -> str:
        return self.route.call.division

    def abandoned(self) -> None:
        self.cancelled = True

    def note_step(self, model: str, nanoseconds: int) -> None:
        if self.route.call.wants_timing:
            timing.note_step(self, model, nanoseconds)

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        stream = self.stream
        route = self.route
        plan: GrpcPlan = self.plan  # type: ignore[assignment]
        trailers = OK_TRAILERS if route.call.is_plain else self._trailers()
        answer: Answer | None = None
        if plan.is_plain and outputs and self.served_by.fixed_size:
            answer = plain_answer(self, plan, outputs, parameters)
        if answer is not None:
            size, framed = answer.size, answer.framed
            if self.id:
                field = id_field(self.id)
                size, framed = size + len(field), answer.framed_with(field)
            if size <= JOIN_LIMIT:
                if len(outputs) == 1:
                    for array in outputs.values():
                        payload = framed + array.tobytes()
                else:
                    payload = self._join(framed, answer, outputs)
                stream.respond_unary(RESPONSE_HEADERS, payload, size + 5, trailers)
                return
        try:
            if plan.is_regional and outputs:
                answer = regional_answer(self, plan, outputs, parameters, route.service)
                field = id_field(self.id) if self.id else b""
                size = answer.size + len(field)
                stream.respond_unary(RESPONSE_HEADERS, answer.framed_with(field), size + 5, trailers)
                return
            parts, size = render(self, plan, outputs, parameters, route.service)
        except IsochroneError as error:
            self.fail(error)
            return
        prefix = b"\0" + size.to_bytes(4, "big")
        if size <= JOIN_LIMIT:
            stream.respond_unary(RESPONSE_HEADERS, b"".join([prefix, *parts]), size + 5, trailers)
            return
        stream.owner = None
        if stream.local_done:
            return
        stream.send_headers(RESPONSE_HEADERS, False)
        for part in [prefix, *parts]:
            stream.send_data(part)
        stream.send_headers(trailers, True)

    def _trailers(self) -> bytes:
        extras = self.route.call.extras(self, self.route.service, now_ns())
        return OK_TRAILERS + b"".join([encode_literal(name, value) for name, value in extras])

    @staticmethod
    def _join(framed: bytes, answer: Answer, outputs: Tensors) -> bytes:
        parts = [framed]
        for prefix, array in zip((b"", *answer.prefixes[1:]), outputs.values(), strict=True):
            parts += (prefix, array.tobytes())
        return b"".join(parts)

    def fail(self, error: IsochroneError) -> None:
        call = self.route.call
        extras = (() if call.is_plain else call.extras(self, self.route.service, now_ns())) + mark(error)
        block = error_block(error.grpc_status, error.message, trailers_only=True, extras=extras)
        self.stream.end_with_trailers(block)

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        # infer() rejects decoupled models on unary calls, so there is at most one response.
        self.complete(outputs, parameters)

    def finish(self) -> None:
        pass


#: A request that reads or writes shared memory.
SharedMemoryGrpcRequest: Any = with_shared_memory(GrpcInferRequest)
