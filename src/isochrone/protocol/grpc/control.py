"""gRPC's control methods: each is a function from the service and a request message to a response message.

The same service calls as in ``rest.control``, in protobuf. Not the hot path.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tritonclient.grpc import service_pb2 as pb

from isochrone.background_tasks import BackgroundTasks
from isochrone.errors import InvalidArgument, IsochroneError, NotFound
from isochrone.protocol.access import control_token
from isochrone.protocol.grpc.calls import CallHead, fail, message_of, parse, respond, unexpected
from isochrone.protocol.grpc.health import (
    HEALTH_SERVICES,
    NOT_SERVING,
    SERVING,
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)
from isochrone.protocol.grpc.plan import plain_parameters
from isochrone.protocol.services.deferred_answers import then
from isochrone.protocol.shared_memory_requests import cuda_status, registered_regions
from isochrone.wire.exchange import Exchange, Route

if TYPE_CHECKING:
    from isochrone.protocol.services.service import InferenceService

Method = Callable[["InferenceService", Any], Any]
#: Runs a call of an exchange with a message between its records.
Recorded = Callable[[Exchange, Any, Callable[[], Any]], Any]


class UnaryRoute(Route):
    """A unary control method."""

    #: Calls in progress on all routes.
    _tasks = BackgroundTasks()

    def __init__(
        self, method: Method, request: Any, service: InferenceService, max_body_bytes: int, call: CallHead
    ) -> None:
        self._method = method
        self._request = request
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._encoding = call.encoding
        #: The call between its records; None: nothing is recorded.
        self.recorded: Recorded | None = None

    def handle(self, exchange: Exchange) -> None:
        stream: Any = exchange
        try:
            body, start = message_of(exchange.body, self._encoding, self._max_body_bytes)
            message = parse(self._request, bytes(body[start:]))
            run = partial(self._method, self._service, message)
            answer = run() if self.recorded is None else self.recorded(exchange, message, run)
        except IsochroneError as error:
            fail(stream, error)
            return
        except Exception as error:
            fail(stream, unexpected(error))
            return
        if hasattr(answer, "__await__"):
            self._tasks.start(self._finish(stream, answer))
        else:
            respond(stream, answer.SerializeToString())

    async def _finish(self, stream: Any, answer: Any) -> None:
        try:
            respond(stream, (await answer).SerializeToString())
        except IsochroneError as error:
            fail(stream, error)
        except Exception as error:
            # Answer, so that the caller does not wait for ever.
            fail(stream, unexpected(error))


def reads_only(method: Method, changes: Callable[[Any], bool]) -> Method:
    """A method that raises ``PermissionDenied`` for messages that change the server."""

    def run(service: InferenceService, message: Any) -> Any:
        if changes(message):
            raise control_token.refused()
        return method(service, message)

    return run


def _server_live(service: InferenceService, _: Any) -> Any:
    return pb.ServerLiveResponse(live=service.is_live())


def _server_ready(service: InferenceService, _: Any) -> Any:
    return pb.ServerReadyResponse(ready=service.is_ready())


def _model_ready(service: InferenceService, request: Any) -> Any:
    return then(service.is_model_ready(request.name, request.version), lambda ready: pb.ModelReadyResponse(ready=ready))


def _server_metadata(service: InferenceService, _: Any) -> Any:
    return service.server_metadata()


def _model_metadata(service: InferenceService, request: Any) -> Any:
    return service.model_metadata(request.name, request.version)


def _model_config(service: InferenceService, request: Any) -> Any:
    return service.model_config(request.name, request.version)


def _model_statistics(service: InferenceService, request: Any) -> Any:
    return service.model_statistics(request.name, request.version)


def _repository_index(service: InferenceService, request: Any) -> Any:
    return service.repository_index(request.ready)


async def _load(service: InferenceService, request: Any) -> Any:
    await service.load(request.model_name, plain_parameters(request.parameters))
    return pb.RepositoryModelLoadResponse()


async def _unload(service: InferenceService, request: Any) -> Any:
    dependents = plain_parameters(request.parameters).get("unload_dependents", False)
    if not isinstance(dependents, bool):
        raise InvalidArgument(f"parameter 'unload_dependents': expected bool, given {dependents!r}")
    await service.unload(request.model_name, dependents)
    return pb.RepositoryModelUnloadResponse()


def _memory_status(service: InferenceService, request: Any) -> Any:
    response = pb.SystemSharedMemoryStatusResponse()
    for region in registered_regions(service).status(request.name):
        entry = response.regions[region.name]
        entry.name, entry.key, entry.offset, entry.byte_size = region.name, region.key, region.offset, region.byte_size
    return response


def _memory_register(service: InferenceService, request: Any) -> Any:
    done = service.register_region(request.name, request.key, request.offset, request.byte_size)
    return then(done, lambda _: pb.SystemSharedMemoryRegisterResponse())


def _memory_unregister(service: InferenceService, request: Any) -> Any:
    return then(service.unregister_region(request.name), lambda _: pb.SystemSharedMemoryUnregisterResponse())


def _cuda_status(service: InferenceService, request: Any) -> Any:
    response = pb.CudaSharedMemoryStatusResponse()
    for region in cuda_status(service, request.name):
        entry = response.regions[region.name]
        entry.name, entry.device_id, entry.byte_size = region.name, region.device_id, region.byte_size
    return response


def _cuda_register(service: InferenceService, request: Any) -> Any:
    done = service.register_cuda_region(request.name, request.raw_handle, request.device_id, request.byte_size)
    return then(done, lambda _: pb.CudaSharedMemoryRegisterResponse())


def _cuda_unregister(service: InferenceService, request: Any) -> Any:
    return then(service.unregister_cuda_region(request.name), lambda _: pb.CudaSharedMemoryUnregisterResponse())


def _trace_setting(service: InferenceService, request: Any) -> Any:
    changes = {key: list(value.value) or None for key, value in request.settings.items()}

    def answer(settings: Any) -> Any:
        response = pb.TraceSettingResponse()
        for key, values in settings.items():
            response.settings[key].value.extend(values)
        return response

    return then(service.trace_setting(request.model_name, changes), answer)


def _log_settings(service: InferenceService, request: Any) -> Any:
    changes = {}
    for key, value in request.settings.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is None:
            raise InvalidArgument(f"log setting '{key}': expected a value, given none")
        changes[key] = getattr(value, kind)
    return then(service.log_settings(changes), _log_settings_message)


def _log_settings_message(settings: Any) -> Any:
    response = pb.LogSettingsResponse()
    for key, value in settings.items():
        slot = response.settings[key]
        if isinstance(value, bool):
            slot.bool_param = value
        elif isinstance(value, int):
            slot.uint32_param = value
        else:
            slot.string_param = value
    return response


def _health_check(service: InferenceService, request: Any) -> Any:
    if request.service not in HEALTH_SERVICES:
        raise NotFound(f"unknown service '{request.service}'")
    return HealthCheckResponse(status=SERVING if service.is_ready() else NOT_SERVING)


def _health_list(service: InferenceService, _: Any) -> Any:
    response = HealthListResponse()
    for name in HEALTH_SERVICES:
        response.statuses[name].status = SERVING if service.is_ready() else NOT_SERVING
    return response


SERVICE = b"/inference.GRPCInferenceService/"

#: path → (request message, method)
METHODS: dict[bytes, tuple[Any, Method]] = {
    SERVICE + b"ServerLive": (pb.ServerLiveRequest, _server_live),
    SERVICE + b"ServerReady": (pb.ServerReadyRequest, _server_ready),
    SERVICE + b"ModelReady": (pb.ModelReadyRequest, _model_ready),
    SERVICE + b"ServerMetadata": (pb.ServerMetadataRequest, _server_metadata),
    SERVICE + b"ModelMetadata": (pb.ModelMetadataRequest, _model_metadata),
    SERVICE + b"ModelConfig": (pb.ModelConfigRequest, _model_config),
    SERVICE + b"ModelStatistics": (pb.ModelStatisticsRequest, _model_statistics),
    SERVICE + b"RepositoryIndex": (pb.RepositoryIndexRequest, _repository_index),
    SERVICE + b"RepositoryModelLoad": (pb.RepositoryModelLoadRequest, _load),
    SERVICE + b"RepositoryModelUnload": (pb.RepositoryModelUnloadRequest, _unload),
    SERVICE + b"SystemSharedMemoryStatus": (pb.SystemSharedMemoryStatusRequest, _memory_status),
    SERVICE + b"SystemSharedMemoryRegister": (pb.SystemSharedMemoryRegisterRequest, _memory_register),
    SERVICE + b"SystemSharedMemoryUnregister": (pb.SystemSharedMemoryUnregisterRequest, _memory_unregister),
    SERVICE + b"CudaSharedMemoryStatus": (pb.CudaSharedMemoryStatusRequest, _cuda_status),
    SERVICE + b"CudaSharedMemoryRegister": (pb.CudaSharedMemoryRegisterRequest, _cuda_register),
    SERVICE + b"CudaSharedMemoryUnregister": (pb.CudaSharedMemoryUnregisterRequest, _cuda_unregister),
    SERVICE + b"TraceSetting": (pb.TraceSettingRequest, _trace_setting),
    SERVICE + b"LogSettings": (pb.LogSettingsRequest, _log_settings),
    b"/grpc.health.v1.Health/Check": (HealthCheckRequest, _health_check),
    b"/grpc.health.v1.Health/List": (HealthListRequest, _health_list),
}

#: path → whether a message changes the server, which requires the token of ``access.control_token``. Messages of the
#: last two methods only read if they contain no settings.
CHANGES: dict[bytes, Callable[[Any], bool]] = {
    SERVICE + b"RepositoryModelLoad": lambda message: True,
    SERVICE + b"RepositoryModelUnload": lambda message: True,
    SERVICE + b"TraceSetting": lambda message: bool(message.settings),
    SERVICE + b"LogSettings": lambda message: bool(message.settings),
}
