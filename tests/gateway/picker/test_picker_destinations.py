"""Where picks go: subsets by the port of their protocol, and workers that are known by their names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2

from envoy_calls import EnvoyCall, RunningPicker, body_message, destination, headers_message, picker
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.picker.destinations import Destinations
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.gateway.upstream.calls import ask_http
from isochrone.gateway.upstream.connections import Connections
from isochrone.settings.wire_limits import WireLimits

_NAMED, _LITERAL = "worker.example:8000", "10.0.0.1:8000"
_UPSTREAMS = (Upstream("worker.example", 8000, 8001), Upstream("10.0.0.1", 8000, 8001))
_BUFFERED = 2


@pytest.fixture
def running() -> Iterator[RunningPicker]:
    """One worker is known by a name that the picker has never been connected to."""
    with picker(upstreams=_UPSTREAMS) as made:
        yield made


def _connect(gateway: Gateway) -> None:
    """As if a connection to the worker had been made, and lost."""
    gateway.fleet.members[_NAMED].connections.peer_host = "10.0.0.9"


def _failures(gateway: Gateway) -> int:
    return gateway.fleet.model("m").failures


def _picked(channel: grpc.Channel, subset: object = None) -> tuple[str, int]:
    """The worker, or the status of a refusal."""
    call = EnvoyCall(channel)
    answer = call.ask(headers_message(subset=subset))
    call.cancel()
    return destination(answer), answer.immediate_response.status.code


@pytest.mark.parametrize("is_grpc", [False, True])
def test_a_subset_names_workers_by_the_port_of_its_protocol(running: RunningPicker, is_grpc: bool) -> None:
    running.do(_connect)
    right, wrong = (8001, 8000) if is_grpc else (8000, 8001)

    def named(fleet: Fleet, *subset: str) -> frozenset[str]:
        return Destinations(fleet).named(frozenset(subset), is_grpc)

    fleet = running.gateway.fleet
    assert named(fleet, f"10.0.0.1:{right}") == {_LITERAL}
    assert named(fleet, f"10.0.0.9:{right}") == {_NAMED}
    assert named(fleet, f"worker.example:{right}") == {_NAMED}
    assert named(fleet, f"10.0.0.1:{wrong}", f"10.0.0.9:{wrong}", f"worker.example:{wrong}") == frozenset()


def test_a_grpc_request_goes_nowhere_by_a_port_of_http(running: RunningPicker) -> None:
    with grpc.insecure_channel(running.address) as channel:
        call = EnvoyCall(channel)
        headers = {"content-type": "application/grpc"}
        path = "/inference.GRPCInferenceService/ModelInfer"
        call.ask(headers_message(path, headers=headers, mode=_BUFFERED, subset="10.0.0.1:8000"))
        message = service_pb2.ModelInferRequest(model_name="m").SerializeToString()
        answer = call.ask(body_message(b"\0" + len(message).to_bytes(4, "big") + message, ends=True))
        assert answer.immediate_response.grpc_status.status == 14


def test_a_worker_without_an_address_is_not_chosen(running: RunningPicker) -> None:
    with grpc.insecure_channel(running.address) as channel:
        assert {_picked(channel) for _ in range(12)} == {(_LITERAL, 0)}
        assert _picked(channel, subset="worker.example:8000") == ("", 503)
        assert _picked(channel, subset="worker.example:8000,10.0.0.1:8000") == (_LITERAL, 0)
        # It is no fault of the worker's that its name leads nowhere.
        assert running.do(_failures) == 0
        running.do(_connect)
        assert {_picked(channel) for _ in range(12)} == {(_LITERAL, 0), ("10.0.0.9:8000", 0)}


def test_a_worker_that_comes_later_is_looked_at(running: RunningPicker) -> None:
    def add(gateway: Gateway) -> None:
        gateway.fleet.set_members([*_UPSTREAMS, Upstream("later.example", 8000, 8001)])
        member = gateway.fleet.members["later.example:8000"]
        member.serves = gateway.fleet.members[_NAMED].serves
        member.endpoint.healthy = True
        gateway.fleet.rebuild()
        gateway.fleet.health_changed(member)

    running.do(_connect)
    with grpc.insecure_channel(running.address) as channel:
        known = {(_LITERAL, 0), ("10.0.0.9:8000", 0)}
        assert {_picked(channel) for _ in range(12)} == known
        running.do(add)
        assert {_picked(channel) for _ in range(30)} == known
        assert running.do(_failures) == 0


def test_the_address_of_a_connection_outlives_it() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connections = Connections(Upstream("localhost", port, port), WireLimits())
        assert connections.peer_host == ""
        await ask_http(connections, b"GET", b"/", ())
        while connections.open:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert connections.peer_host == "127.0.0.1"
        connections.close()
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def test_no_address_is_no_failure_of_the_worker() -> None:
    """Where most workers are unhealthy, health is ignored, so that one which was never reached may be chosen."""

    def ignore_health(gateway: Gateway) -> None:
        member = gateway.fleet.members[_NAMED]
        member.endpoint.healthy = False
        gateway.fleet.health_changed(member)

    with picker(upstreams=_UPSTREAMS[:1]) as running, grpc.insecure_channel(running.address) as channel:
        running.do(ignore_health)
        call = EnvoyCall(channel)
        refusal = call.ask(headers_message()).immediate_response
        assert refusal.status.code == 503
        assert b"the address of worker.example:8000 is not known yet" in refusal.body
        assert call.status() is grpc.StatusCode.OK
        assert running.is_idle()

        def booked(gateway: Gateway) -> tuple[int, float]:
            (replica,) = gateway.fleet.model("m").current.replicas.values()
            return gateway.fleet.model("m").failures, replica.error_rate

        assert running.do(booked) == (0, 0.0)
