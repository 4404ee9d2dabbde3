"""Health and reflection are the gateway's own: answered without any worker, also in a fleet with a control plane."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.protocol.grpc.calls import frame_message
from isochrone.protocol.grpc.health import HealthCheckRequest, HealthCheckResponse
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


class Stream:
    """A caller's stream that keeps what is sent."""

    def __init__(self, head: Head, loop: asyncio.AbstractEventLoop) -> None:
        self.head = head
        self.connection: Any = self
        self.loop = loop
        self.owner: Any = None
        self.sent: list[bytes] = []
        self.ended = False
        self.unsent = 0

    def send_headers(self, block: bytes, end: bool) -> None: ...

    def send_data(self, data: bytes) -> None:
        self.sent.append(bytes(data[5:]))

    def end_with_trailers(self, block: bytes) -> None:
        self.ended = True

    def hold_window(self) -> None: ...

    def release_window(self) -> None: ...


def head(path: bytes) -> Head:
    made = Head(b"POST", path, ((b"content-type", b"application/grpc"),))
    made.is_http2 = True
    return made


def opened(path: bytes, message: bytes, gateway: Gateway, loop: asyncio.AbstractEventLoop) -> Stream:
    stream = Stream(head(path), loop)
    consumer = GatewayApplication(gateway).route(stream.head).open(stream)  # type: ignore[arg-type]
    consumer.data_received(frame_message(message))
    return stream


def led() -> Gateway:
    gateway = Gateway(GatewayRules(), WireLimits())
    gateway.fleet.lead()
    return gateway


@pytest.mark.parametrize(
    ("service", "status"),
    [("", NOT_SERVING), ("inference.GRPCInferenceService", NOT_SERVING), ("nobody", SERVICE_UNKNOWN)],
)
def test_health_is_watched(service: str, status: int) -> None:
    async def run() -> None:
        asked = HealthCheckRequest(service=service).SerializeToString()
        stream = opened(b"/grpc.health.v1.Health/Watch", asked, led(), asyncio.get_running_loop())
        assert [HealthCheckResponse.FromString(each).status for each in stream.sent] == [status]
        assert not stream.ended
        stream.owner.abandoned()

    asyncio.run(run())


def test_services_are_listed() -> None:
    async def run() -> None:
        # list_services is field 7 of the request.
        path = b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        stream = opened(path, b"\x3a\x00", led(), asyncio.get_running_loop())
        assert b"inference.GRPCInferenceService" in stream.sent[0]

    asyncio.run(run())


def test_a_stream_of_questions_whose_answers_nobody_reads_ends() -> None:
    async def run() -> None:
        stream = Stream(head(b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"), asyncio.get_running_loop())
        consumer = GatewayApplication(led()).route(stream.head).open(stream)  # type: ignore[arg-type]
        question = frame_message(b"\x3a\x00")
        for _ in range(100_000):
            consumer.data_received(question)
            stream.unsent = sum(map(len, stream.sent[-1:])) + stream.unsent
            if stream.ended:
                break
        assert stream.ended
        assert stream.unsent < 2 << 20

    asyncio.run(run())
