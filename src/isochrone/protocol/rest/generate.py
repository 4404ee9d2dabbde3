"""POST …/generate and …/generate_stream: one plain JSON object in, one or a stream of server-sent events out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from isochrone.clock import NEVER
from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.protocol.back_pressure import WaitingProducers
from isochrone.protocol.headers.orca import ORCA_FORMAT_HEADER
from isochrone.protocol.headers.rejections import rest_fields
from isochrone.protocol.headers.request_fields import request_fields
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters, Plan
from isochrone.protocol.parameters import PLAN_PARAMETERS, read_parameters
from isochrone.protocol.rest.answers import JSON, load_fields, respond_error, respond_unexpected
from isochrone.protocol.rest.generate_objects import read_generate, write_generate
from isochrone.protocol.rest.headers import timeout_header
from isochrone.protocol.rest.json_bodies import read_json, reject_repeated_keys
from isochrone.protocol.tensors.datatypes import name_of
from isochrone.wire.exchange import Exchange, Head, Headers, Route

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.protocol.services.service import InferenceService

_EVENTS: Headers = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"))


class GenerateRoute(Route):
    """Requests to one generate path with one message head."""

    def __init__(self, service: InferenceService, head: Head, model: str, version: str, *, streaming: bool) -> None:
        self._service = service
        self._model = model
        self._version = version
        self._events = streaming
        self._timeout_ns = timeout_header(head)
        self._load_format = head.get(ORCA_FORMAT_HEADER) or b""
        self.stages, self.trace_context, self.division, self.caller_id = request_fields(head)

    def handle(self, exchange: Exchange) -> None:
        service = self._service
        try:
            raw = exchange.body
            body: object = read_json(raw, msgspec.json.decode, object)
            reject_repeated_keys(raw)
            declared, max_batch_size = service.declared_inputs(self._model, self._version)
            generate = read_generate(body, declared, max_batch_size)
            plan = Plan(
                self._model,
                self._version,
                tuple((name, name_of(array.dtype), array.shape) for name, array in generate.inputs.items()),
                None,
                {key: value for key, value in generate.parameters.items() if key not in PLAN_PARAMETERS},
                **read_parameters(generate.parameters),
            )
            request = GenerateInferRequest(exchange, self, plan, generate.id, generate.inputs, self._events)
            timeout = min((given for given in (plan.timeout_ns, self._timeout_ns) if given), default=0)
            request.deadline = exchange.arrived + timeout if timeout else NEVER
            service.infer(request)
        except IsochroneError as error:
            exchange.owner = None
            respond_error(exchange, error, extras=self.extras())
        except Exception as error:
            exchange.owner = None
            respond_unexpected(exchange, error)

    def extras(self) -> Headers:
        """The load report, if the caller asks for it."""
        return load_fields(self._service, self._model, self._version, self._load_format)


class GenerateInferRequest(InferRequest):
    """A generate request: answers with one JSON object, or with a stream of events."""

    takes_many: ClassVar[bool] = True

    __slots__ = ("_answered", "_events", "_exchange", "_first", "_producers", "_route")

    def __init__(
        self, exchange: Exchange, route: GenerateRoute, plan: Plan, request_id: str, inputs: Tensors, events: bool
    ) -> None:
        super().__init__(plan, request_id, inputs, exchange.arrived)
        self._route = route
        self._exchange = exchange
        self._events = events
        self._answered = False
        #: The response of a plain generate call, until it is certain that there is no other.
        self._first: bytes | None = None
        #: Models that wait until the client has read earlier responses.
        self._producers = WaitingProducers(exchange)
        exchange.owner = self

    def abandoned(self) -> None:
        self.cancelled = True
        # The client will not read again: waiting models must check ``cancelled`` now.
        self._producers.resume()

    def exchange_of(self) -> Any:
        return self._exchange

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self._route.stages

    @property
    def trace_context(self) -> Mapping[str, str] | None:
        return self._route.trace_context

    @property
    def caller_id(self) -> str:
        return self._route.caller_id

    @property
    def division(self) -> str:
        return self._route.division

    def _object(self, outputs: Tensors, parameters: Parameters) -> bytes:
        served = self.served_by
        message = write_generate(outputs, self.plan.model_name, served.model_version, self.id)
        message.update({key: value for key, value in parameters.items() if not key.startswith("triton_")})
        return msgspec.json.encode(message)

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        try:
            data = self._object(outputs, parameters)
        except IsochroneError as error:
            self.fail(error)
            self.cancelled = True
            return
        if not self._events:
            if self._first is None:
                self._first = data
            else:
                self.fail(_not_one())
                self.cancelled = True
            return
        if not self._answered:
            self._answered = True
            self._exchange.start(200, _EVENTS + self._route.extras())
        self._exchange.write([b"data: ", data, b"\n\n"])

    def finish(self) -> None:
        if self._events:
            if not self._answered:
                self._exchange.start(200, _EVENTS + self._route.extras())
            self._exchange.end()
        elif self._first is None:
            self.fail(_not_one())
        elif not self._answered:
            self._answered = True
            self._exchange.respond(200, JSON + self._route.extras(), [self._first])

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self.emit(outputs, parameters)
        if not self.cancelled:
            self.finish()

    def fail(self, error: IsochroneError) -> None:
        data = msgspec.json.encode({"error": error.message})
        if self._events:
            # As in Triton, an error as the first response is an event, with the error's HTTP status.
            if not self._answered:
                self._answered = True
                self._exchange.start(error.http_status, _EVENTS + rest_fields(error) + self._route.extras())
            self._exchange.write([b"data: ", data, b"\n\n"])
            self._exchange.end()
        elif not self._answered:
            self._answered = True
            self._exchange.respond(error.http_status, JSON + rest_fields(error) + self._route.extras(), [data])

    @property
    def is_congested(self) -> bool:
        return self._events and self._answered and self._exchange.is_congested

    def when_writable(self, callback: Callable[[], None]) -> None:
        self._producers.add(callback)


def _not_one() -> InvalidArgument:
    return InvalidArgument(
        "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
        "number of responses"
    )
