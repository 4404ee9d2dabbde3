"""REST: which path means what, and the routes of inference.

``route`` is called once per distinct request head; the route it returns holds everything the head alone decides (model,
version, encodings, deadline header), so that a repeated request starts at its body. Control calls are in
``rest_control``. Translation only: every answer comes from an ``InferenceService``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import msgspec

from isochrone.errors import InvalidArgument, IsochroneError, MethodNotAllowed, NotFound
from isochrone.protocol import control_token, timing
from isochrone.protocol.datatypes import item_size
from isochrone.protocol.fencing import FencedRoute, term_of
from isochrone.protocol.inflating import inflating
from isochrone.protocol.leases import infer_leased
from isochrone.protocol.rest_answers import respond_error, respond_unexpected, timeout_header
from isochrone.protocol.rest_control import CHANGES, CONTROL_PATHS, ControlRoute
from isochrone.protocol.rest_generate import GenerateRoute
from isochrone.protocol.rest_infer import (
    LeasedRestInferRequest,
    RestInferRequest,
    RestPlan,
    decode_plan,
    read_inputs,
)
from isochrone.protocol.stages import stages_of
from isochrone.wire import compression
from isochrone.wire.exchange import Buffer, Exchange, Head, Route

if TYPE_CHECKING:
    from isochrone.protocol.service import InferenceService

_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_INFER = re.compile(_MODEL + r"/(?P<verb>infer|generate|generate_stream)/?$")
_MAX_HEADER_MEMOISED = 4096
_MAX_PLANS_MEMOISED = 512


class PlanMemo:
    """Plans of one model and version as the path names them, by the bytes of their JSON part."""

    __slots__ = ("_plans", "get")

    def __init__(self) -> None:
        self._plans: dict[bytes, RestPlan] = {}
        self.get = self._plans.get

    def keep(self, header: bytes, plan: RestPlan) -> None:
        # A plan with inline data or an id of its own would never be asked for again.
        if len(header) > _MAX_HEADER_MEMOISED or not plan.is_plain or plan.request_id:
            return
        if len(self._plans) >= _MAX_PLANS_MEMOISED:
            self._plans.clear()
        self._plans[header] = plan


class RestRouter:
    """Finds the route of a head."""

    def __init__(self, service: InferenceService, max_body_bytes: int) -> None:
        self.service = service
        self.max_body_bytes = max_body_bytes
        self._memos: dict[tuple[str, str], PlanMemo] = {}

    def route(self, head: Head) -> Route:
        try:
            return inflating(self._find(head), head, self.max_body_bytes)
        except IsochroneError as error:
            return ErrorRoute(error)

    def _find(self, head: Head) -> Route:
        path = head.target.partition(b"?")[0]
        try:
            text = path.decode("ascii")
        except UnicodeDecodeError:
            raise NotFound(f"no such path: {path[:200]!r}; percent-encode what is not ASCII") from None
        match = _INFER.match(text)
        if match is not None:
            if head.method != b"POST":
                raise MethodNotAllowed(f"{match['verb']}: expected POST, given {_shown(head.method)}")
            model, version = _unquote(match["model"]), _unquote(match["version"] or "")
            if match["verb"] == "infer":
                return InferRoute(self, head, model, version)
            return GenerateRoute(self, head, model, version, streaming=match["verb"] == "generate_stream")
        for pattern, methods in CONTROL_PATHS:
            found = pattern.match(text)
            if found is None:
                continue
            action = methods.get(head.method) or (methods.get(b"GET") if head.method == b"HEAD" else None)
            if action is None:
                allowed = ", ".join(name.decode() for name in methods)
                raise MethodNotAllowed(f"{text}: expected {allowed}, given {_shown(head.method)}")
            changes = head.method == b"POST" and action in CHANGES
            if changes and not control_token.may_change(head, self.service.control_token):
                raise control_token.refused()
            arguments = {key: _unquote(value or "") for key, value in found.groupdict().items()}
            route = ControlRoute(self, head, action, arguments)
            term = term_of(head) if changes else None
            return route if term is None else FencedRoute(route, self.service.fence, term)
        raise NotFound(f"no such path: {text[:200]}; this server speaks the Open Inference Protocol under /v2")

    def memo(self, model: str, version: str) -> PlanMemo:
        memo = self._memos.get((model, version))
        if memo is None:
            if len(self._memos) >= 4096:
                self._memos.clear()
            memo = self._memos[(model, version)] = PlanMemo()
        return memo


class ErrorRoute(Route):
    """Answers every request with one error."""

    def __init__(self, error: IsochroneError) -> None:
        self._error = error

    def handle(self, exchange: Exchange) -> None:
        respond_error(exchange, self._error)


class InferRoute(Route):
    """POST …/infer with one particular head."""

    def __init__(self, router: RestRouter, head: Head, model: str, version: str) -> None:
        self.router = router
        self.service = router.service
        self.model = model
        self.version = version
        self.memo = router.memo(model, version)
        self.header_length = _header_length(head)
        self.accept_encoding = compression.choose(head.get(b"accept-encoding"))
        self.timeout_ns = timeout_header(head)
        self.stages = stages_of(head)
        self.wants_timing = head.get(timing.TIMING_HEADER) is not None
        self.load_format = head.get(b"endpoint-load-metrics-format") or b""
        #: Nothing but the answer itself is wanted.
        self.is_plain = not (self.accept_encoding or self.wants_timing or self.load_format)

    def handle(self, exchange: Exchange) -> None:
        try:
            body = exchange.body
            length = self.header_length
            if length is None:
                plan = decode_plan(body, len(body), self.model, self.version)
            elif length == 0:
                plan, body = self._raw_plan(body)
            else:
                if length > len(body):
                    raise InvalidArgument(
                        f"Inference-Header-Content-Length is {length}, but the body has {len(body)} bytes"
                    )
                header = bytes(body[:length])
                known = self.memo.get(header)
                if known is None:
                    known = decode_plan(header, length, self.model, self.version)
                    self.memo.keep(header, known)
                plan = known
            inputs = read_inputs(plan, body, self.service)
            if plan.regions:
                infer_leased(self.service, LeasedRestInferRequest(exchange, self, plan, inputs), plan.choices)
            else:
                self.service.infer(RestInferRequest(exchange, self, plan, inputs))
        except IsochroneError as error:
            exchange.owner = None
            respond_error(exchange, error)
        except Exception as error:
            exchange.owner = None
            respond_unexpected(exchange, error)

    def _raw_plan(self, body: Buffer) -> tuple[RestPlan, Buffer]:
        """A body that is one tensor's bytes and nothing else, its shape following from its size; the body as read.

        For BYTES the body is the one element itself, without its length.
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
        return decode_plan(header, 0, self.model, self.version), body


def _header_length(head: Head) -> int | None:
    value = head.get(b"inference-header-content-length")
    if value is None:
        return None
    if not value.isdigit() or len(value) > 12:
        raise InvalidArgument(
            f"header Inference-Header-Content-Length: expected a non-negative integer, given {value[:32]!r}"
        )
    return int(value)


def _unquote(text: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"the path's '{text[:100]}' is not valid UTF-8 when unquoted") from None


def _shown(method: bytes) -> str:
    return method.decode("latin-1")[:20]
