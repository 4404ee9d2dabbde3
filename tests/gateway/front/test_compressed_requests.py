"""Compressed requests through a gateway: placed by what their JSON part says, and forwarded as they came."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Awaitable, Callable

import pytest
from offline import Caller, OfflineLoop, add_members, offline, only_request, turns

from isochrone.clock import NEVER
from isochrone.gateway.caller_requests import CallerRequest
from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.protocol.compression import inflating
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head


def request(size: int, **parameters: object) -> bytes:
    numbers = random.Random(1)
    data = [numbers.randrange(10**8) for _ in range(size // 10)]
    return json.dumps({"inputs": [{"name": "X", "data": data}], "parameters": parameters}).encode()


def send(gateway: Gateway, body: bytes, encoding: bytes, memory: int = 1 << 30) -> Caller:
    head = Head(b"POST", b"/v2/models/m/infer", ((b"host", b"gw"), (b"content-encoding", encoding)))
    caller = Caller(head, body)
    caller.memory = memory
    GatewayApplication(gateway).route(head).handle(caller)  # type: ignore[arg-type]
    return caller


def unread(before: bytes, after: bytes) -> bytes:
    """A large JSON part that cannot be parsed as a whole."""
    return before + b'"inputs": [' + b"0 " * 200_000 + b"]" + after


def play(scene: Callable[[Gateway], Awaitable[None]]) -> None:
    async def run(loop: OfflineLoop) -> None:
        gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
        add_members(gateway.fleet, {"m": {"1": ""}}, {"m": {"1": ""}})
        await scene(gateway)
        await gateway.close()

    offline(run)


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_sequence_in_a_compressed_body_is_one(size: int) -> None:
    """The large one waits for a thread; nothing of it is placed before."""

    async def scene(gateway: Gateway) -> None:
        body = gzip.compress(request(size, sequence_id=7, timeout=60_000_000), 1)
        caller = send(gateway, body, b"gzip")
        if size > 100:
            assert not gateway.machine.open
            assert isinstance(caller.owner, inflating.Waiting)
        while not gateway.machine.open:
            await turns()
        placed = only_request(gateway)
        assert caller.owner is placed
        assert b"7" in placed.demand.key
        assert placed.kind is Kind.SEQUENCE
        assert placed.deadline == caller.arrived + 60_000_000_000
        assert placed.exchange.body is body
        # What its JSON part took is free again.
        assert caller.reserved == 1000
        assert (caller.most > 1_000_000) is (size > 100)

    play(scene)


def test_without_memory_it_is_rejected() -> None:
    async def scene(gateway: Gateway) -> None:
        caller = send(gateway, gzip.compress(request(1_000_000, sequence_id=7), 1), b"gzip", memory=100_000)
        assert caller.status == 503
        assert not gateway.machine.open

    play(scene)


def test_a_caller_that_leaves_meanwhile_is_forgotten() -> None:
    async def scene(gateway: Gateway) -> None:
        # Both threads are busy, and a third request waits for them.
        callers = [send(gateway, gzip.compress(request(1_000_000), 1), b"gzip") for _ in range(3)]
        callers[2].owner.abandoned()
        while len(gateway.machine.open) < 2:
            await turns()
        await turns(20)
        assert {one.exchange for one in gateway.machine.open if isinstance(one, CallerRequest)} == set(callers[:2])

    play(scene)


def test_what_is_not_compressed_is_read_as_it_is() -> None:
    async def scene(gateway: Gateway) -> None:
        send(gateway, request(100, sequence_id=7), b"identity")
        assert b"7" in only_request(gateway).demand.key

    play(scene)


@pytest.mark.parametrize("encoding", [b"gzip", b"br"])
def test_what_does_not_decompress_is_for_the_worker_to_refuse(encoding: bytes) -> None:
    async def scene(gateway: Gateway) -> None:
        send(gateway, b"nonsense" * 100, encoding)
        assert only_request(gateway).deadline == NEVER

    play(scene)


@pytest.mark.parametrize("encoding", [b"gzip", b"identity"])
def test_a_large_json_part_is_not_parsed_as_a_whole(encoding: bytes) -> None:
    """That would hold up the event loop, for seconds."""

    async def scene(gateway: Gateway) -> None:
        body = unread(b"{", b', "parameters": {"timeout": 60000000}}')
        caller = send(gateway, gzip.compress(body) if encoding == b"gzip" else body, encoding)
        while not gateway.machine.open:
            await turns()
        assert only_request(gateway).deadline == caller.arrived + 60_000_000_000

    play(scene)


@pytest.mark.parametrize("encoding", [b"gzip", b"identity"])
def test_a_sequence_that_cannot_be_read_is_rejected(encoding: bytes) -> None:
    async def scene(gateway: Gateway) -> None:
        body = unread(b'{"parameters": {"sequence_id": 7, "more": "%b"}, ' % (b"x" * 100_000), b"}")
        caller = send(gateway, gzip.compress(body) if encoding == b"gzip" else body, encoding)
        while not caller.status and not gateway.machine.open:
            await turns()
        assert caller.status == 400
        assert caller.owner is None
        assert not gateway.machine.open

    play(scene)


def test_a_call_without_a_body_is_not_decompressed() -> None:
    """Some clients announce an encoding with every call."""

    async def scene(gateway: Gateway) -> None:
        announced = ((b"host", b"gw"), (b"content-encoding", b"gzip"))
        for target in (b"/v2/health/live", b"/v2/models/m/ready"):
            caller = Caller(Head(b"GET", target, announced), b"")
            GatewayApplication(gateway).route(caller.head).handle(caller)  # type: ignore[arg-type]
            assert caller.status == 200
        caller = Caller(Head(b"GET", b"/v2/models/m", announced), b"")
        GatewayApplication(gateway).route(caller.head).handle(caller)  # type: ignore[arg-type]
        assert only_request(gateway).exchange is caller

    play(scene)
