"""REST's control calls: health, metadata, configuration, statistics, repository, shared memory, trace and log settings.

Each is a function from a ``Call`` to a JSON value. Not the hot path.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from isochrone.background_tasks import BackgroundTasks
from isochrone.errors import InvalidArgument, IsochroneError, MalformedRequest, PermissionDenied
from isochrone.protocol import control_json
from isochrone.protocol.headers import orca
from isochrone.protocol.rest.answers import JSON, respond_error, respond_unexpected
from isochrone.protocol.services.deferred_answers import then
from isochrone.protocol.shared_memory_requests import cuda_status, registered_regions
from isochrone.protocol.tensors.datatypes import shown
from isochrone.wire.exchange import Exchange, Head, Headers, Route

if TYPE_CHECKING:
    from isochrone.protocol.access.fencing import Fence
    from isochrone.protocol.services.service import InferenceService


class Call:
    """One control call: the service, the arguments from the path, and the JSON body."""

    __slots__ = ("arguments", "body", "exchange", "service")

    def __init__(
        self, service: InferenceService, arguments: Mapping[str, str], body: dict[str, Any], exchange: Exchange
    ) -> None:
        self.service = service
        #: For what depends on the connection.
        self.exchange = exchange
        self.arguments = arguments
        self.body = body

    @property
    def model(self) -> tuple[str, str]:
        return self.arguments["model"], self.arguments.get("version", "")


class Empty:
    """An answer without a body."""

    def __init__(self, status: int) -> None:
        self.status = status


#: Models whose statistics are turned into JSON in one turn of the loop: 0.2 ms. A thousand at once would hold up every
#: request for 50 ms, and a controller asks every few seconds.
_MODELS_PER_TURN = 4

#: Triton's message, with status 400, for a model that is not ready or unknown. Gateways use it too.
MODEL_NOT_READY = "Model version not ready"

Answer = Any
Action = Callable[[Call], Any]


class ControlRoute(Route):
    """Requests to one control path with one message head."""

    #: Calls in progress on all routes.
    _tasks = BackgroundTasks()

    def __init__(self, service: InferenceService, head: Head, action: Action, arguments: Mapping[str, str]) -> None:
        self._service = service
        self._action = action
        self._arguments = arguments
        self._load_format = head.get(orca.ORCA_FORMAT_HEADER)

    def handle(self, exchange: Exchange) -> None:
        try:
            answer = self._action(Call(self._service, self._arguments, self._read(exchange), exchange))
            if not isinstance(answer, Awaitable):
                _respond(exchange, answer, self._load())
                return
        except IsochroneError as error:
            respond_error(exchange, error, with_code=True)
            return
        except Exception as error:
            respond_unexpected(exchange, error)
            return
        self._tasks.start(self._finish(exchange, answer))

    def _load(self) -> Headers:
        """The load report, if the caller asked for it, for example with a health check."""
        if self._load_format is None:
            return ()
        return ((orca.ORCA_HEADER, self._service.load_report().header(self._load_format)),)

    async def _finish(self, exchange: Exchange, answer: Awaitable[Answer]) -> None:
        try:
            _respond(exchange, await answer, self._load())
        except IsochroneError as error:
            respond_error(exchange, error, with_code=True)
        except Exception as error:
            # Answer, so that the caller does not wait for ever.
            respond_unexpected(exchange, error)

    def _read(self, exchange: Exchange) -> dict[str, Any]:
        body = exchange.body
        if not len(body):
            return {}
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedRequest(f"failed to parse the request JSON: {error}") from None
        if not isinstance(value, dict):
            raise InvalidArgument(f"the request's body: expected a JSON object, given {type(value).__name__}")
        return value


class FencedRoute(Route):
    """A control route for the calls of one leader's term."""

    def __init__(self, inner: Route, fence: Fence, term: int) -> None:
        self._inner = inner
        self._fence = fence
        self._term = term

    def handle(self, exchange: Exchange) -> None:
        try:
            self._fence.check(self._term)
        except PermissionDenied as error:
            respond_error(exchange, error)
            return
        self._inner.handle(exchange)


def _respond(exchange: Exchange, answer: Answer, extras: Headers) -> None:
    if isinstance(answer, Empty):
        exchange.respond(answer.status, extras, [])
    else:
        exchange.respond(200, JSON + extras, [msgspec.json.encode(answer)] if answer is not None else [])


# Health and metadata.


def _live(call: Call) -> Answer:
    return Empty(200 if call.service.is_live() else 400)


def _ready(call: Call) -> Answer:
    return Empty(200 if call.service.is_ready() else 400)


def _committed(call: Call) -> Answer:
    return Empty(200 if call.service.is_committed() else 400)


def _model_ready(call: Call) -> Answer:
    def answer(ready: bool) -> Answer:
        if not ready:
            raise InvalidArgument(MODEL_NOT_READY)
        return Empty(200)

    return then(call.service.is_model_ready(*call.model), answer)


def _server_metadata(call: Call) -> Answer:
    return control_json.message_json(call.service.server_metadata())


def _model_metadata(call: Call) -> Answer:
    answer = control_json.message_json(call.service.model_metadata(*call.model))
    digest = call.service.model_digest(*call.model)
    if digest:
        answer["parameters"] = {"digest": f"sha256:{digest}"}
    return answer


def _config(call: Call) -> Answer:
    return control_json.model_config_json(call.service.model_config(*call.model).config)


async def _statistics(call: Call) -> Answer:
    name, version = call.model if "model" in call.arguments else ("", "")
    message = call.service.model_statistics(name, version)
    if isinstance(message, Awaitable):
        message = await message
    rows = []
    for number, statistics in enumerate(message.model_stats, 1):
        rows.append(control_json.model_statistics_json(statistics))
        if not number % _MODELS_PER_TURN:
            await asyncio.sleep(0)
    return {"model_stats": rows}


# Repository.


def _index(call: Call) -> Answer:
    only_ready = call.body.get("ready", False)
    if not isinstance(only_ready, bool):
        raise InvalidArgument(f"'ready': expected bool, given {shown(only_ready)}")

    def answer(index: Any) -> Answer:
        rows = control_json.repository_index_json(index)
        for row in rows:
            if row.get("state") == "READY":
                row["digest"] = f"sha256:{call.service.model_digest(row['name'], row['version'])}"
                if provenance := call.service.model_provenance(row["name"], row["version"]):
                    row["provenance"] = provenance
        return rows

    return then(call.service.repository_index(only_ready), answer)


async def _load(call: Call) -> Answer:
    parameters = _load_parameters(call.body.get("parameters", {}))
    await call.service.load(call.arguments["model"], parameters)


def _load_parameters(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InvalidArgument(f"'parameters': expected an object, given {type(given).__name__}")
    parameters: dict[str, Any] = {}
    for key, value in given.items():
        if not isinstance(value, str):
            raise InvalidArgument(f"load parameter '{key}': expected a string, given {type(value).__name__}")
        if key.startswith("file:"):
            try:
                # MIME encoders insert line breaks.
                parameters[key] = base64.b64decode("".join(value.split()), validate=True)
            except ValueError as error:
                raise InvalidArgument(f"load parameter '{key}': expected base64, given {error}") from None
        else:
            parameters[key] = value
    return parameters


async def _unload(call: Call) -> Answer:
    parameters = call.body.get("parameters", {})
    dependents = parameters.get("unload_dependents", False) if isinstance(parameters, dict) else None
    if not isinstance(dependents, bool):
        raise InvalidArgument(f"'parameters.unload_dependents': expected bool, given {shown(dependents)}")
    await call.service.unload(call.arguments["model"], dependents)


# Shared memory.


def _memory_status(call: Call) -> Answer:
    regions = registered_regions(call.service).status(call.arguments.get("region", ""))
    return [
        {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
        for region in regions
    ]


def _memory_register(call: Call) -> Answer:
    if not call.arguments["region"]:
        raise InvalidArgument("'region name' is necessary to register system shared memory region")
    for key, expected in (("key", str), ("byte_size", int)):
        if key not in call.body:
            raise InvalidArgument(f"Shared memory register request has no '{key}' field")
        if not isinstance(call.body.get(key), expected) or isinstance(call.body.get(key), bool):
            raise InvalidArgument(f"'{key}': expected {expected.__name__}, given {shown(call.body.get(key))}")
    offset = call.body.get("offset", 0)
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise InvalidArgument(f"'offset': expected int, given {shown(offset)}")
    return call.service.register_region(call.arguments["region"], call.body["key"], offset, call.body["byte_size"])


def _memory_unregister(call: Call) -> Answer:
    return call.service.unregister_region(call.arguments.get("region", ""))


def _cuda_status(call: Call) -> Answer:
    return [
        {"name": region.name, "device_id": region.device_id, "byte_size": region.byte_size}
        for region in cuda_status(call.service, call.arguments["region"])
    ]


def _cuda_register(call: Call) -> Answer:
    name = call.arguments["region"]
    if not name:
        raise InvalidArgument("'region name' is necessary to register cuda shared memory region")
    for key in ("raw_handle", "device_id", "byte_size"):
        if key not in call.body:
            raise InvalidArgument(f"Shared memory register request has no '{key}' field")
    for key in ("device_id", "byte_size"):
        if type(call.body[key]) is not int:
            raise InvalidArgument(f"'{key}': expected int, given {shown(call.body[key])}")
    handle = _handle(call.body["raw_handle"])
    return call.service.register_cuda_region(name, handle, call.body["device_id"], call.body["byte_size"])


def _handle(given: Any) -> bytes:
    """``{"b64": …}``: the bytes of a CUDA IPC handle."""
    text = given.get("b64") if isinstance(given, dict) else None
    if not isinstance(text, str):
        raise InvalidArgument(f"'raw_handle': expected an object with the handle as 'b64', given {shown(given)}")
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError as error:
        raise InvalidArgument(f"'raw_handle.b64': expected base64, given {shown(text)}: {error}") from None


def _cuda_unregister(call: Call) -> Answer:
    return call.service.unregister_cuda_region(call.arguments.get("region", ""))


# Settings.


def _trace_setting(call: Call) -> Answer:
    changes: dict[str, list[str] | None] = {}
    for key, value in call.body.items():
        if value is None:
            changes[key] = None
        else:
            changes[key] = [str(item) for item in (value if isinstance(value, list) else [value])]

    def answer(settings: dict[str, list[str]]) -> Answer:
        return {key: value if key == "trace_level" else value[0] if value else "" for key, value in settings.items()}

    return then(call.service.trace_setting(call.arguments.get("model", ""), changes), answer)


def _logging(call: Call) -> Answer:
    return call.service.log_settings(call.body)


_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_REGION = r"/v2/systemsharedmemory(?:/region/(?P<region>[^/]+))?"
_CUDA_REGION = r"/v2/cudasharedmemory(?:/region/(?P<region>[^/]+))?"

_PATHS: tuple[tuple[str, dict[bytes, Action]], ...] = (
    (r"/v2", {b"GET": _server_metadata}),
    (r"/v2/health/live", {b"GET": _live}),
    (r"/v2/health/ready", {b"GET": _ready}),
    (r"/v2/health/committed", {b"GET": _committed}),
    (r"/v2/models/stats", {b"GET": _statistics}),
    (_MODEL, {b"GET": _model_metadata}),
    (_MODEL + "/ready", {b"GET": _model_ready}),
    (_MODEL + "/config", {b"GET": _config}),
    (_MODEL + "/stats", {b"GET": _statistics}),
    (r"/v2/models/(?P<model>[^/]+)/trace/setting", {b"GET": _trace_setting, b"POST": _trace_setting}),
    (r"/v2/trace/setting", {b"GET": _trace_setting, b"POST": _trace_setting}),
    (r"/v2/logging", {b"GET": _logging, b"POST": _logging}),
    (r"/v2/repository(?:/(?P<repository>[^/]+))?/index", {b"POST": _index}),
    (r"/v2/repository(?:/(?P<repository>[^/]+))?/models/(?P<model>[^/]+)/load", {b"POST": _load}),
    (r"/v2/repository(?:/(?P<repository>[^/]+))?/models/(?P<model>[^/]+)/unload", {b"POST": _unload}),
    (_REGION + "/status", {b"GET": _memory_status}),
    (_REGION + "/register", {b"POST": _memory_register}),
    (_REGION + "/unregister", {b"POST": _memory_unregister}),
    (_CUDA_REGION + "/status", {b"GET": _cuda_status}),
    (_CUDA_REGION + "/register", {b"POST": _cuda_register}),
    (_CUDA_REGION + "/unregister", {b"POST": _cuda_unregister}),
)

#: Actions that change the server if sent with POST; they require the token of ``access.control_token``.
CHANGES = frozenset((_load, _unload, _trace_setting, _logging))

#: (pattern, method → action); a trailing slash is accepted, as the Open Inference Protocol writes some paths with one.
CONTROL_PATHS = tuple((re.compile(pattern + "/?$"), methods) for pattern, methods in _PATHS)
