"""A picker on a thread of its own, with workers made by hand, and calls to it as Envoy makes them."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
import uvloop

from ext_proc_messages import ProcessingRequest, ProcessingResponse
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.picker.server import MAX_CONTROL_FRAMES_PER_SECOND, PickerServer
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.server.settings import GatewaySettings
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.settings.wire_limits import WireLimits

_SECONDS = 30.0
#: Model → versions.
SERVES = {"m": {"3": ""}, "n": {"1": ""}}


class RunningPicker:
    """One picker. Its workers are healthy for as long as nobody says otherwise; nothing is sent to them."""

    def __init__(
        self,
        rules: GatewayRules,
        upstreams: Sequence[Upstream],
        serves: Mapping[str, Mapping[str, str]],
        limits: WireLimits,
    ) -> None:
        settings = GatewaySettings(
            host="127.0.0.1",
            port=0,
            metrics_port=None,
            rules=rules,
            exit_timeout=0.0,
            limits=limits,
            seed=1,
        )
        self.server = PickerServer(settings, 0)
        self.gateway: Gateway = self.server.gateway
        self._upstreams, self._serves = upstreams, serves
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()), name="picker")
        self._thread.start()
        assert self._started.wait(_SECONDS)
        self.address = f"127.0.0.1:{self.server.ports['picker']}"
        self.health_address = f"127.0.0.1:{self.server.ports['health']}"

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        starting = asyncio.ensure_future(self.server.start())
        # It listens, and waits for a first worker. These are made by hand, without monitors: those would find nobody.
        while "health" not in self.server.ports:  # noqa: ASYNC110
            await asyncio.sleep(0)
        fleet = self.gateway.fleet
        fleet.set_members(self._upstreams)
        for member in fleet.members.values():
            member.endpoint.healthy = True
            member.endpoint.joined_at = -(10**18)
            member.serves = self._serves
        fleet.rebuild()
        await starting
        self._started.set()
        await self._stop.wait()
        await self.server.stop()

    def do(self, action: Callable[[Gateway], Any]) -> Any:
        """Runs on the picker's own thread."""
        assert self._loop is not None

        async def run() -> Any:
            return action(self.gateway)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_SECONDS)

    def in_flight(self) -> dict[str, int]:
        return dict(
            self.do(lambda gateway: {name: each.endpoint.in_flight for name, each in gateway.fleet.members.items()})
        )

    def buffered(self) -> int:
        """Bytes that are reserved for what has come and was not consumed, and for what was not sent."""
        return int(self.do(lambda gateway: self.server._listeners.snapshot().buffered))

    def is_idle(self) -> bool:
        """Nothing is in flight, and the machine has nothing open or held."""
        is_open = self.do(lambda gateway: bool(gateway.machine.open) or gateway.machine.held > 0)
        return not is_open and not any(self.in_flight().values())

    def close(self) -> None:
        if self._thread.is_alive() and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_SECONDS)


@contextlib.contextmanager
def picker(
    rules: GatewayRules | None = None,
    upstreams: Sequence[Upstream] = (Upstream("10.0.0.1", 8000, 8000), Upstream("10.0.0.2", 8000, 8000)),
    serves: Mapping[str, Mapping[str, str]] | None = None,
    **limits: Any,
) -> Iterator[RunningPicker]:
    """``limits``: fields of ``WireLimits``."""
    given = {"max_body_bytes": 1 << 20, "max_control_frames_per_second": MAX_CONTROL_FRAMES_PER_SECOND, **limits}
    made = RunningPicker(rules or GatewayRules(), upstreams, serves or SERVES, WireLimits(**given))
    try:
        yield made
    finally:
        made.close()


class EnvoyCall:
    """One call of Process by grpcio: one request of a client."""

    def __init__(self, channel: grpc.Channel) -> None:
        method = channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
            response_deserializer=ProcessingResponse.FromString,
        )
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: Replies that nobody has asked for when the call had ended.
        self.left: list[Any] = []
        self._call = method(iter(self._messages.get, None), timeout=_SECONDS)

    def send(self, message: Any) -> None:
        self._messages.put(message)

    def receive(self) -> Any:
        return next(self._call)

    def ask(self, message: Any) -> Any:
        self.send(message)
        return self.receive()

    def end(self) -> None:
        """Envoy needs nothing more."""
        self._messages.put(None)

    def cancel(self) -> None:
        """Envoy resets the call: its client has gone."""
        self._call.cancel()
        self._messages.put(None)

    def status(self) -> grpc.StatusCode:
        """How the call ended. Waits for it, and reads what is left: grpcio tells no status before."""
        with contextlib.suppress(grpc.RpcError):
            self.left.extend(self._call)
        code: grpc.StatusCode = self._call.code()
        self._messages.put(None)
        return code

    def details(self) -> str:
        return str(self._call.details())


def headers_message(
    path: str = "/v2/models/m/infer",
    *,
    headers: Mapping[str, str] | None = None,
    mode: int | None = 0,
    response_mode: int = 0,
    ends: bool = False,
    subset: object = None,
    method: str = "POST",
) -> Any:
    """``request_headers`` as Envoy sends it first."""
    message = ProcessingRequest()
    message.request_headers.end_of_stream = ends
    given = {":method": method, ":scheme": "http", ":authority": "x", ":path": path, "x-request-id": "1"}
    for name, value in {**given, **(headers or {})}.items():
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    if mode is not None:
        message.protocol_config.SetInParent()
        message.protocol_config.request_body_mode = mode
        message.protocol_config.response_body_mode = response_mode
    if subset is not None:
        hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        hint.update({"x-gateway-destination-endpoint-subset": subset})
    return message


def response_message(status: int = 200, *, ends: bool = False, headers: Mapping[str, str] | None = None) -> Any:
    message = ProcessingRequest()
    message.response_headers.end_of_stream = ends
    for name, value in {":status": str(status), **(headers or {})}.items():
        message.response_headers.headers.headers.add(key=name, raw_value=value.encode())
    return message


def body_message(body: bytes, *, ends: bool, response: bool = False) -> Any:
    message = ProcessingRequest()
    part = message.response_body if response else message.request_body
    part.body, part.end_of_stream = body, ends
    part.SetInParent()
    return message


def trailers_message(trailers: Mapping[str, str] | None = None, *, response: bool = False) -> Any:
    message = ProcessingRequest()
    part = message.response_trailers if response else message.request_trailers
    part.SetInParent()
    for name, value in (trailers or {}).items():
        part.trailers.headers.add(key=name, raw_value=value.encode())
    return message


def set_headers(common: Any) -> dict[str, str]:
    """What a reply sets."""
    return {each.header.key: each.header.raw_value.decode() for each in common.header_mutation.set_headers}


def destination(response: Any) -> str:
    """The worker that a reply names; "": none. Header and metadata say the same."""
    part = response.WhichOneof("response")
    if part not in ("request_headers", "request_body"):
        return ""
    named = set_headers(getattr(response, part).response).get("x-gateway-destination-endpoint", "")
    metadata = response.dynamic_metadata
    assert not named or metadata["envoy.lb"]["x-gateway-destination-endpoint"] == named
    return named
