"""A gateway's metadata: what depends on the workers is asked of each once, not of all with every call."""

from __future__ import annotations

import json
from typing import Any

from offline import OfflineLoop, add_members, offline, turns

from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head

SHARED_MEMORY = "system_shared_memory"


class Caller:
    owner: Any = None
    body = b""

    def __init__(self) -> None:
        self.extensions: list[str] | None = None

    def respond(self, status: int, headers: Any, body: Any) -> None:
        assert status == 200
        self.extensions = json.loads(b"".join(body))["extensions"]


async def ask(gateway: Gateway) -> Caller:
    caller = Caller()
    route = GatewayApplication(gateway).route(Head(b"GET", b"/v2", ()))
    route.handle(caller)  # type: ignore[arg-type]
    await turns()
    return caller


async def answer(loop: OfflineLoop, *extensions: str) -> int:
    """Answers every question that was asked; how many there were."""
    asked = [transport for transport in loop.transports if transport.written.startswith(b"GET /v2 ")]
    body = json.dumps({"name": "w", "version": "1", "extensions": extensions}).encode()
    for transport in asked:
        transport.written.clear()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        transport.protocol.data_received(head + body)
    await turns()
    return len(asked)


def test_each_worker_is_asked_once() -> None:
    async def run(loop: OfflineLoop) -> None:
        gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
        add_members(gateway.fleet, {}, {})
        first = await ask(gateway)
        assert await answer(loop, SHARED_MEMORY) == 2
        assert first.extensions is not None
        assert SHARED_MEMORY in first.extensions
        second = await ask(gateway)
        assert second.extensions == first.extensions
        assert await answer(loop) == 0
        # One has gone, and another process answers at its address.
        endpoint = gateway.fleet.members["b:1"].endpoint
        endpoint.joined_at += 1
        third = await ask(gateway)
        assert await answer(loop) == 1
        assert third.extensions is not None
        assert SHARED_MEMORY not in third.extensions
        # Those that are not there do not count.
        endpoint.healthy = False
        fourth = await ask(gateway)
        assert fourth.extensions == first.extensions
        await gateway.close()

    offline(run)


def test_one_that_makes_no_sense_is_asked_again() -> None:
    async def run(loop: OfflineLoop) -> None:
        gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
        add_members(gateway.fleet, {})
        for text in (b"[]", b"<html>"):
            caller = await ask(gateway)
            (transport,) = [each for each in loop.transports if each.written.startswith(b"GET /v2 ")]
            transport.written.clear()
            transport.protocol.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
            await turns()
            assert caller.extensions is not None
            assert SHARED_MEMORY not in caller.extensions
        caller = await ask(gateway)
        assert await answer(loop, SHARED_MEMORY) == 1
        assert caller.extensions is not None
        assert SHARED_MEMORY in caller.extensions
        await gateway.close()

    offline(run)


def test_without_workers_it_is_answered_at_once() -> None:
    async def run(loop: OfflineLoop) -> None:
        gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
        assert (await ask(gateway)).extensions is not None
        await gateway.close()

    offline(run)
