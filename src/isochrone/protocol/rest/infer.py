"""POST …/infer: JSON and binary tensors to an ``InferRequest``, and its outputs back to bytes.

The JSON part of an answer, without its id, is memoised on the plan, by the version that answered and the shapes of the
outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from isochrone.clock import NEVER, now_ns
from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.protocol.compression import codec
from isochrone.protocol.compression.deflating import respond_compressed
from isochrone.protocol.headers.orca import ORCA_FORMAT_HEADER
from isochrone.protocol.headers.rejections import rest_fields
from isochrone.protocol.headers.request_fields import request_fields
from isochrone.protocol.headers.timing import SERVER_TIMING_HEADER, TIMING_HEADER, note_step, server_timing
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, OutputChoice, Parameters
from isochrone.protocol.rest.answers import JSON, load_fields, respond_error, respond_unexpected
from isochrone.protocol.rest.headers import header_length, timeout_header
from isochrone.protocol.rest.plan import RestPlan, decode_plan, read_inputs
from isochrone.protocol.rest.plan_memo import PlanMemo
from isochrone.protocol.shared_memory_requests import infer_with_regions, with_shared_memory, write_output
from isochrone.protocol.tensors.binary import to_binary
from isochrone.protocol.tensors.classification import classify
from isochrone.protocol.tensors.datatypes import item_size, name_of
from isochrone.protocol.tensors.json_values import to_json
from isochrone.wire.exchange import Buffer, Exchange, Head, Headers, Route

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.protocol.services.service import InferenceService

_MAX_ANSWERS_MEMOISED = 64
_MAX_LENGTHS_MEMOISED = 1024
#: Outputs up to this size are copied into the answer; larger ones are sent as views.
_COPY_LIMIT = 4096

_encode_json = msgspec.json.Encoder().encode
#: Length of the JSON part → the headers of an answer with binary tensors.
_binary_headers: dict[int, Headers] = {}


def binary_headers(length: int) -> Headers:
    """The headers of an answer with binary tensors behind a JSON part of this length."""
    headers = _binary_headers.get(length)
    if headers is None:
        headers = (
            (b"content-type", b"application/octet-stream"),
            (b"inference-header-content-length", b"%d" % length),
        )
        if len(_binary_headers) >= _MAX_LENGTHS_MEMOISED:
            _binary_headers.clear()
        _binary_headers[length] = headers
    return headers


class InferRoute(Route):
    """POST …/infer requests with one message head."""

    def __init__(self, service: InferenceService, memo: PlanMemo, head: Head, model: str, version: str) -> None:
        self.service = service
        self.model = model
        self.version = version
        self.memo = memo
        self.header_length = header_length(head)
        self.accept_encoding = codec.choose(head.get(b"accept-encoding"))
        self.timeout_ns = timeout_header(head)
        self.stages, self.trace_context, self.division, self.caller_id = request_fields(head)
        self.wants_timing = head.get(TIMING_HEADER) is not None
        self.load_format = head.get(ORCA_FORMAT_HEADER) or b""
        #: The caller asks for neither compression nor further response headers.
        self.is_plain = not (self.accept_encoding or self.wants_timing or self.load_format)

    def handle(self, exchange: Exchange) -> None:
        try:
            body = exchange.body
            length = self.header_length
            if length is None:
                length = len(body)
                plan, request_id = decode_plan(body, self.model, self.version)
            elif length == 0:
                plan, request_id, body = self._raw_plan(body)
            else:
                if length > len(body):
                    raise InvalidArgument(
                        f"Inference-Header-Content-Length is {length}, but the body has {len(body)} bytes"
                    )
                plan, request_id = self.memo.decode(self.model, self.version, bytes(body[:length]))
            inputs = read_inputs(plan, body, length, self.service)
            if plan.regions:
                request = SharedMemoryRestRequest(exchange, self, plan, request_id, inputs)
                infer_with_regions(self.service, request, plan.choices)
            else:
                self.service.infer(RestInferRequest(exchange, self, plan, request_id, inputs))
        except IsochroneError as error:
            exchange.owner = None
            respond_error(exchange, error)
        except Exception as error:
            exchange.owner = None
            respond_unexpected(exchange, error)

    def _raw_plan(self, body: Buffer) -> tuple[RestPlan, str, Buffer]:
        """The plan of a raw request, whose body is the bytes of one tensor; its id, which is empty; and the body.

        The shape follows from the body's size. For BYTES the body is the only element, without its length.
        """
        declared, max_batch_size = self.service.declared_inputs(self.model, self.version)
        if len(declared) != 1:
            raise InvalidArgument(
                f"a raw request needs a model with one input; model '{self.model}' has {len(declared)}"
            )
        name, datatype, dims = declared[0]
        if datatype == "BYTES":
            if dims != (1,):
                raise InvalidArgument(
                    f"For BYTE datatype raw input '{name}', the model must have input shape [1], it has {list(dims)}"
                )
            body = b"".join((len(body).to_bytes(4, "little"), body))
        if sum(dimension < 0 for dimension in dims) > 1:
            raise InvalidArgument(
                f"a raw request needs an input of fixed size; input '{name}' is {datatype} {list(dims)}"
            )
        size = len(body)
        known = item_size(datatype) or 1
        for dimension in dims:
            known *= max(dimension, 1) if dimension >= 0 else 1
        shape = [size // known if dimension < 0 else dimension for dimension in dims]
        if max_batch_size:
            shape.insert(0, 1)
        header = msgspec.json.encode(
            {
                "inputs": [
                    {
                        "name": name,
                        "shape": shape,
                        "datatype": datatype,
                        "parameters": {"binary_data_size": size},
                    }
                ],
                "parameters": {"binary_data_output": True},
            }
        )
        return *decode_plan(header, self.model, self.version), body


class RestInferRequest(InferRequest):
    """A request over REST; encodes its own answer."""

    __slots__ = ("exchange", "route", "steps")

    #: (model, ns) of each step of an ensemble; set with the first (``timing.note_step``).
    steps: list[tuple[str, int]]

    def __init__(self, exchange: Exchange, route: InferRoute, plan: RestPlan, request_id: str, inputs: Tensors) -> None:
        arrived = exchange.arrived
        timeout = plan.timeout_ns or route.timeout_ns
        if route.timeout_ns and plan.timeout_ns:
            timeout = min(plan.timeout_ns, route.timeout_ns)
        # InferRequest's fields are set here, without a call to its __init__: this runs for every request.
        self.plan = plan
        self.id = request_id
        self.inputs = inputs
        self.deadline = arrived + timeout if timeout else NEVER
        self._cancelled = False
        self.served_by = None
        self.arrived = arrived
        self.enqueued = arrived
        self.dispatched = 0
        self.compute_start = 0
        self.infer_start = 0
        self.infer_end = 0
        self.compute_end = 0
        self.exchange = exchange
        self.route = route
        exchange.owner = self

    def exchange_of(self) -> Any:
        return self.exchange

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self.route.stages

    @property
    def trace_context(self) -> Mapping[str, str] | None:
        return self.route.trace_context

    @property
    def caller_id(self) -> str:
        return self.route.caller_id

    @property
    def division(self) -> str:
        return self.route.division

    def abandoned(self) -> None:
        self.cancelled = True

    def endpoint(self) -> str:
        return "HTTP end point"

    def note_step(self, model: str, nanoseconds: int) -> None:
        if self.route.wants_timing:
            note_step(self, model, nanoseconds)

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        plan: RestPlan = self.plan  # type: ignore[assignment]
        served = self.served_by
        if plan.is_plain and served.fixed_size:
            # With the types: a Triton model may return others than it declares, and each time another one.
            if len(outputs) == 1:
                for name, array in outputs.items():
                    key: Any = (served, name, array.dtype.num, array.shape)
            else:
                # A python model may return its outputs in any order and omit some.
                arrays = outputs.values()
                key = (served, *outputs, *[array.dtype.num for array in arrays], *[array.shape for array in arrays])
            if parameters:
                key = (*key, *parameters.items())
            answer = plan.answers.get(key)
            if answer is None:
                answer = self._memoise(key, outputs, parameters)
            if answer is not None:
                headers, start = answer
                if self.id:
                    start = b'{"id":%b,%b' % (_encode_json(self.id), start[1:])
                    headers = binary_headers(len(start)) if headers is not JSON else JSON
                parts: list[Buffer] = [start]
                for array in outputs.values():
                    if array.nbytes <= _COPY_LIMIT:
                        parts.append(array.tobytes())
                    else:
                        parts.append(to_binary(array, name_of(array.dtype)))
                self._send(headers, parts)
                return
        try:
            headers, parts = self._render(outputs, parameters, self.id)
        except IsochroneError as error:
            self.fail(error)
            return
        self._send(headers, parts)

    def _memoise(self, key: Any, outputs: Tensors, parameters: Parameters) -> tuple[Headers, bytes] | None:
        """The answer without its tensors; None: an output has no fixed size, so that it cannot be memoised."""
        if any(array.dtype.kind == "O" for array in outputs.values()):
            return None
        headers, parts = self._render(outputs, parameters, "")
        answers = cast("RestPlan", self.plan).answers
        if len(answers) >= _MAX_ANSWERS_MEMOISED:
            answers.clear()
        answers[key] = (headers, bytes(parts[0]))
        return answers[key]

    def _render(self, outputs: Tensors, parameters: Parameters, request_id: str) -> tuple[Headers, list[Buffer]]:
        plan: RestPlan = self.plan  # type: ignore[assignment]
        served = self.served_by
        described: list[dict[str, Any]] = []
        blobs: list[Buffer] = []
        default = OutputChoice(plan.binary_default)
        for name, array in outputs.items():
            choice = plan.choices.get(name, default)
            if choice.classes:
                labels = served.signature.output_by_name[name].labels
                array = classify(array, choice.classes, labels, served.batched)
            datatype = name_of(array.dtype)
            item: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
            if choice.region:
                # As in Triton, the entry has no parameters: C++ clients read any parameter as a binary size.
                write_output(name, choice, array, self.route.service)
            elif choice.binary:
                blob = to_binary(array, datatype)
                item["parameters"] = {"binary_data_size": len(blob)}
                blobs.append(blob)
            else:
                item["data"] = to_json(array, datatype)
            described.append(item)
        # In Triton's order, for clients that compare text.
        message: dict[str, Any] = {"id": request_id} if request_id else {}
        message["model_name"], message["model_version"] = plan.model_name, served.model_version
        if parameters:
            message["parameters"] = dict(parameters)
        message["outputs"] = described
        start = _encode_json(message)
        if not blobs:
            return JSON, [start]
        return binary_headers(len(start)), [start, *blobs]

    def _send(self, headers: Headers, parts: Sequence[Buffer]) -> None:
        route = self.route
        if route.is_plain:
            self.exchange.respond(200, headers, parts)
            return
        if route.accept_encoding is None:
            self.exchange.respond(200, headers + self._extras(), parts)
        else:
            respond_compressed(self.exchange, route.accept_encoding, headers, parts, self._extras)

    def _extras(self) -> Headers:
        """The response headers that the caller asked for: timing and load report."""
        route = self.route
        extras: Headers = ()
        if route.wants_timing:
            extras += ((SERVER_TIMING_HEADER, server_timing(self, now_ns())),)
        if route.load_format:
            extras += load_fields(route.service, route.model, route.version, route.load_format)
        return extras

    def fail(self, error: IsochroneError) -> None:
        headers = (JSON if self.route.is_plain else JSON + self._extras()) + rest_fields(error)
        self.exchange.respond(error.http_status, headers, [_encode_json({"error": error.message})])

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        # infer() rejects decoupled models over REST, so there is at most one response.
        self.complete(outputs, parameters)

    def finish(self) -> None:
        pass


#: A request that reads or writes shared memory.
SharedMemoryRestRequest: Any = with_shared_memory(RestInferRequest)
