"""What a head means to a gateway: forwarded to one worker, asked of all, or answered here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from isochrone.errors import (
    InvalidArgument,
    IsochroneError,
    MalformedRequest,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    Unsupported,
)
from isochrone.gateway.control_calls import routes as control
from isochrone.gateway.control_calls.load_requests import checked_grpc, checked_http
from isochrone.gateway.control_calls.openai_models import OpenAIModelsRoute
from isochrone.gateway.control_calls.recorded import recorded_grpc, recorded_rest
from isochrone.gateway.front.compressed_requests import CompressedRoute
from isochrone.gateway.front.generate_requests import GenerateRoute
from isochrone.gateway.front.grpc_requests import GrpcRoute
from isochrone.gateway.front.grpc_streams import StreamRoute
from isochrone.gateway.front.http_requests import HttpRoute
from isochrone.gateway.front.known_messages import KnownMessages
from isochrone.gateway.front.openai_requests import OpenAIRoute
from isochrone.gateway.front.paths import GENERATE, INFERENCE, MODEL_PATH, unquote
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.upstream.connections import MOST_SHARED
from isochrone.protocol.compression.codec import is_identity
from isochrone.protocol.compression.inflating import inflating_messages
from isochrone.protocol.grpc.calls import CallHead, GrpcErrorRoute, fail
from isochrone.protocol.grpc.health import (
    HEALTH_SERVICES,
    NOT_SERVING,
    SERVING,
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListResponse,
    HealthWatchRoute,
)
from isochrone.protocol.grpc.reflection import REFLECTION_PATHS, ReflectionRoute
from isochrone.protocol.headers.version_pins import DOMAIN, is_of_pins
from isochrone.protocol.openai.answers import OpenAIErrorRoute, is_openai
from isochrone.protocol.openai.answers import inflating as inflating_openai
from isochrone.protocol.openai.paths import MODELS, find_path
from isochrone.protocol.rest.answers import ErrorRoute
from isochrone.protocol.rest.control import MODEL_NOT_READY
from isochrone.protocol.rest.headers import inflating
from isochrone.wire.exchange import Head, Route

if TYPE_CHECKING:
    from isochrone.gateway.gateway import Gateway

_FLEET_WIDE = re.compile(
    r"/v2/(repository/models/[^/]+/(load|unload)|logging|trace/setting|(system|cuda)sharedmemory/.*)/?$"
)

_SERVICE = b"/inference.GRPCInferenceService/"
_TO_ONE = frozenset(_SERVICE + name for name in (b"ModelInfer", b"ModelMetadata", b"ModelConfig"))
_TO_EVERYBODY = frozenset(
    _SERVICE + name
    for name in (
        b"RepositoryModelLoad",
        b"RepositoryModelUnload",
        b"TraceSetting",
        b"LogSettings",
        b"SystemSharedMemoryStatus",
        b"SystemSharedMemoryRegister",
        b"SystemSharedMemoryUnregister",
        b"CudaSharedMemoryStatus",
        b"CudaSharedMemoryRegister",
        b"CudaSharedMemoryUnregister",
    )
)
#: What HPACK adds to a field: its kind and two lengths.
_FIELD_BYTES = 7
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "generate",
    "logging",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "sequence",
    "statistics",
)


class GatewayApplication:
    """REST and gRPC; the content type tells them apart. And OpenAI's paths."""

    def __init__(
        self, gateway: Gateway, *, allow_file_overrides: bool = False, server_name: str = "isochrone-gateway"
    ) -> None:
        self._gateway = gateway
        self._server_name = server_name
        self._allow_file_overrides = allow_file_overrides
        self._known_messages = KnownMessages()

    def route(self, head: Head) -> Route:
        is_grpc = (head.get(b"content-type") or b"").startswith(b"application/grpc")
        try:
            if not is_grpc and is_openai(head):
                return self._openai(head)
            if not is_grpc:
                route = self._rest(head)
                encoding = head.get(b"content-encoding")
                if encoding is None or is_identity(encoding):
                    return route
                limit = self._gateway.limits.max_body_bytes
                if isinstance(route, HttpRoute):
                    return CompressedRoute(route, encoding, limit)
                return inflating(route, head, limit)
            if not head.is_http2:
                raise InvalidArgument("gRPC needs HTTP/2, this request came over HTTP/1.1")
        except IsochroneError as error:
            return OpenAIErrorRoute(error) if is_openai(head) else ErrorRoute(error)
        try:
            # Whatever reads a message here, or sends it on by a call of its own, gets it decompressed.
            encoding = head.get(b"grpc-encoding") or b"identity"
            return inflating_messages(self._grpc(head), encoding, self._gateway.limits.max_body_bytes, fail)
        except IsochroneError as error:
            return GrpcErrorRoute(error)

    # REST.

    def _openai(self, head: Head) -> Route:
        path, model = find_path(head)
        if path == MODELS:
            return OpenAIModelsRoute(self._gateway, head, model)
        return inflating_openai(OpenAIRoute(self._gateway, head), head, self._gateway.limits.max_body_bytes)

    def _rest(self, head: Head) -> Route:
        gateway = self._gateway
        path, _, query = head.target.partition(b"?")
        try:
            text = path.decode("ascii")
        except UnicodeDecodeError:
            raise NotFound(f"no such path: {path[:200]!r}; percent-encode what is not ASCII") from None
        plain = text.rstrip("/")
        if plain in ("/v2/health/live", "/v2/health/ready", "/v2"):
            _expect(head, b"GET", b"HEAD")
            if plain == "/v2":
                return control.MetadataRoute(gateway, self._server_name, EXTENSIONS, grpc=False)
            if plain == "/v2/health/live":
                return control.LocalRoute(lambda: (200, None))
            return control.ReadyRoute(gateway, head)
        if plain == "/v2/repository/index":
            _expect(head, b"POST")
            return control.FanOutRoute(gateway, head, control.index)
        if plain == "/v2/models/stats":
            _expect(head, b"GET", b"HEAD")
            return control.FanOutRoute(gateway, head, control.statistics)
        if fleet_wide := _FLEET_WIDE.match(text):
            if fleet_wide[2]:
                self._refuse_if_led()
            check = checked_http if fleet_wide[2] == "load" and not self._allow_file_overrides else None
            changes = bool(fleet_wide[2])
            seconds = control.LOAD_SECONDS
            recorded = recorded_rest(gateway, head)
            return control.FanOutRoute(
                gateway, head, control.all_or_error, seconds, check, changes_models=changes, recorded=recorded
            )
        match = MODEL_PATH.match(text)
        if match is None:
            raise NotFound(f"no such path: {text[:200]}; this gateway speaks the Open Inference Protocol under /v2")
        model, version = unquote(match["model"]), unquote(match["version"] or "")
        rest = (match["rest"] or "").rstrip("/")
        verb = rest.removeprefix("/")
        if verb == "stats":
            _expect(head, b"GET", b"HEAD")
            return control.FanOutRoute(gateway, head, control.statistics)
        if verb == "trace/setting":
            return control.FanOutRoute(gateway, head, control.all_or_error, recorded=recorded_rest(gateway, head))
        if verb == "ready":
            _expect(head, b"GET", b"HEAD")
            not_ready = (400, {"error": MODEL_NOT_READY})
            return control.LocalRoute(lambda: (200, None) if gateway.is_model_ready(model, version) else not_ready)
        if verb in INFERENCE:
            _expect(head, b"POST")
        elif verb not in ("", "config"):
            raise NotFound(f"no such path: {text[:200]}; this gateway speaks the Open Inference Protocol under /v2")
        tail = rest.encode() + (b"?" + query if query else b"")
        # A stream of answers is passed on as it comes: nothing of it can be taken back.
        kind = Kind.STREAM if verb == "generate_stream" else Kind.STATELESS
        route = GenerateRoute if verb in GENERATE else HttpRoute
        return route(gateway, head, model, version, tail, kind)

    def _refuse_if_led(self) -> None:
        if self._gateway.fleet.is_led:
            raise Unsupported(
                "what is loaded is the control plane's affair here: use 'isochrone rollout start MODEL=VERSION'"
            )

    # gRPC.

    def _grpc(self, head: Head) -> Route:
        if is_of_pins(head.authority):
            given = head.authority.decode("latin-1")[:200]
            raise InvalidArgument(
                f"authority: expected the gateway's own name or address, given '{given}'; "
                f"names under {DOMAIN} are of workers, and a gateway takes the version from the message or the epoch"
            )
        size = len(head.target) + sum(len(name) + len(value) + _FIELD_BYTES for name, value in head.headers)
        if size > MOST_SHARED:
            raise PayloadTooLarge(
                f"the call's metadata has {size} bytes; a gateway takes at most {MOST_SHARED}, since calls of many "
                "callers share its connections to workers"
            )
        gateway = self._gateway
        path = head.target
        if path in _TO_ONE:
            return GrpcRoute(gateway, head, self._known_messages)
        if path == _SERVICE + b"ModelStreamInfer":
            return StreamRoute(gateway, head, self._known_messages)
        if path == _SERVICE + b"ModelStatistics":
            return control.GrpcFanOutRoute(gateway, head, control.statistics_message)
        if path == _SERVICE + b"RepositoryIndex":
            return control.GrpcFanOutRoute(gateway, head, control.index_message)
        if path in _TO_EVERYBODY:
            if path.startswith(_SERVICE + b"RepositoryModel"):
                self._refuse_if_led()
            check = (
                checked_grpc if path == _SERVICE + b"RepositoryModelLoad" and not self._allow_file_overrides else None
            )
            recorded = recorded_grpc(gateway, head)
            return control.GrpcFanOutRoute(gateway, head, control.first_message, check, recorded)
        if path == _SERVICE + b"ServerMetadata":
            return control.MetadataRoute(gateway, self._server_name, EXTENSIONS, grpc=True)
        local = {
            _SERVICE + b"ServerLive": self._live,
            _SERVICE + b"ServerReady": self._ready,
            _SERVICE + b"ModelReady": self._model_ready,
            b"/grpc.health.v1.Health/Check": self._health,
            b"/grpc.health.v1.Health/List": self._health_list,
        }.get(path)
        if local is not None:
            return control.LocalGrpcRoute(local)
        # Of the gateway itself: which worker would be asked says nothing of the fleet.
        if path == b"/grpc.health.v1.Health/Watch":
            return HealthWatchRoute(lambda: gateway.is_ready, CallHead(head))
        if path in REFLECTION_PATHS:
            return ReflectionRoute(CallHead(head))
        raise Unsupported(f"unknown gRPC method {path.decode('latin-1')[:200]}")

    @staticmethod
    def _live(message: bytes) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    def _ready(self, message: bytes) -> Any:
        return service_pb2.ServerReadyResponse(ready=self._gateway.is_ready)

    def _model_ready(self, message: bytes) -> Any:
        request = _parse(service_pb2.ModelReadyRequest, message)
        return service_pb2.ModelReadyResponse(ready=self._gateway.is_model_ready(request.name, request.version))

    def _health(self, message: bytes) -> Any:
        request = _parse(HealthCheckRequest, message)
        if request.service not in HEALTH_SERVICES:
            raise NotFound(f"unknown service '{request.service[:200]}'")
        return HealthCheckResponse(status=SERVING if self._gateway.is_ready else NOT_SERVING)

    def _health_list(self, message: bytes) -> Any:
        response = HealthListResponse()
        for name in HEALTH_SERVICES:
            response.statuses[name].status = SERVING if self._gateway.is_ready else NOT_SERVING
        return response


def _parse(kind: Any, message: bytes) -> Any:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise MalformedRequest(f"failed to parse {kind.DESCRIPTOR.name}: {error}") from None


def _expect(head: Head, *methods: bytes) -> None:
    if head.method not in methods:
        allowed = ", ".join(method.decode() for method in methods)
        raise MethodNotAllowed(f"expected {allowed}, given {head.method.decode('latin-1')[:20]}")
