"""Deadlines of tokens as the gateway reads them from generate requests and OpenAI's calls, and reports of streams."""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from offline import Caller, OfflineLoop, add_members, offline, only_request, turns

from isochrone.clock import NEVER
from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.policies.base import TokenDeadlines
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.shadow import ShadowRules
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head, Headers

MS = 1_000_000
PATHS = ["/v2/models/m/generate", "/v2/models/m/generate_stream", "/v1/completions"]
Scene = Callable[[Gateway, OfflineLoop], Awaitable[None]]


def play(scene: Scene, policy: str = "prequal") -> None:
    async def run(loop: OfflineLoop) -> None:
        gateway = Gateway(GatewayRules(defaults=ModelRules(policy=policy)), WireLimits(), seed=1)
        add_members(gateway.fleet, {"m": {"1": ""}}, {"m": {"1": ""}})
        await scene(gateway, loop)
        await gateway.close()

    offline(run)


class StreamingCaller(Caller):
    """One that takes an answer in pieces, too."""

    on_writable = None

    def start(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers

    def write(self, body: Any) -> None:
        self.text += b"".join(map(bytes, body))

    def end(self) -> None: ...


def send(gateway: Gateway, path: str, body: dict[str, Any], headers: Headers = ()) -> StreamingCaller:
    text = json.dumps(body).encode()
    if headers:
        text = gzip.compress(text)
    head = Head(b"POST", path.encode(), ((b"host", b"gw"), *headers))
    caller = StreamingCaller(head, text)
    GatewayApplication(gateway).route(head).handle(caller)  # type: ignore[arg-type]
    return caller


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("headers", [(), ((b"content-encoding", b"gzip"),)])
def test_deadlines_of_tokens_are_part_of_the_demand(path: str, headers: Headers) -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        body = {"model": "m", "prompt": "x", "text_input": "x", "time_to_first_token_ms": 200, "inter_token_ms": 5}
        send(gateway, path, body, headers)
        await turns()
        request = only_request(gateway)
        assert request.demand.tokens == TokenDeadlines(request.arrived + 200 * MS, 5 * MS)
        assert (request.deadline, request.demand.deadline) == (NEVER, NEVER)

    play(scene)


@pytest.mark.parametrize("path", PATHS)
def test_a_request_without_them_is_any_other(path: str) -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        send(gateway, path, {"model": "m", "prompt": "x", "text_input": "x"})
        request = only_request(gateway)
        assert request.demand is request.served.plain_demand

    play(scene)


@pytest.mark.parametrize("headers", [(), ((b"content-encoding", b"gzip"),)])
@pytest.mark.parametrize("is_nested", [True, False])
def test_prompt_and_parameters_of_generate_are_still_read(headers: Headers, is_nested: bool) -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        gateway.fleet.model("m")
        parameters = {"priority": 2, "timeout": 3_000_000}
        body = {"text_input": "once", "inter_token_ms": 5, **({"parameters": parameters} if is_nested else parameters)}
        send(gateway, PATHS[0], body, headers)
        await turns()
        request = only_request(gateway)
        demand = request.demand
        assert (demand.prompt, demand.priority, demand.deadline) == (b'"once"', 2, request.arrived + 3000 * MS)
        assert demand.tokens == TokenDeadlines(NEVER, 5 * MS)

    play(scene, "prefix")


@pytest.mark.parametrize("headers", [(), ((b"content-encoding", b"gzip"),)])
def test_the_copy_for_a_shadow_asks_for_the_same(headers: Headers) -> None:
    async def run(loop: OfflineLoop) -> None:
        shadowed = ModelRules(policy="prefix", shadow=ShadowRules(share=1.0, model="other"))
        rules = GatewayRules(defaults=ModelRules(policy="prefix"), models={"m": shadowed})
        gateway = Gateway(rules, WireLimits(), seed=1)
        add_members(gateway.fleet, {"m": {"1": ""}, "other": {"1": ""}})
        gateway.fleet.model("m")
        body = {"text_input": "once", "time_to_first_token_ms": 200, "inter_token_ms": 5, "priority": 2}
        head = Head(b"POST", PATHS[0].encode(), ((b"host", b"gw"), *headers))
        route = GatewayApplication(gateway).route(head)
        texts = [json.dumps(each).encode() for each in (body, {"text_input": "twice"})]
        first, second = (StreamingCaller(head, gzip.compress(text) if headers else text) for text in texts)
        route.handle(first)  # type: ignore[arg-type]
        await turns()
        assert sorted(request.served.name for request in gateway.machine.open) == ["m", "other"]
        for request in gateway.machine.open:
            demand = request.demand
            assert demand.tokens == TokenDeadlines(request.arrived + 200 * MS, 5 * MS)
            assert (demand.prompt, demand.priority) == (b'"once"', 2)
        # Another request with the same head is read anew.
        route.handle(second)  # type: ignore[arg-type]
        await turns()
        assert [request.demand.tokens for request in gateway.machine.open].count(None) == 2
        await gateway.close()

    offline(run)


@pytest.mark.parametrize("path", PATHS[1:])
def test_the_report_of_a_stream_is_taken_when_it_begins(path: str) -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        caller = send(gateway, path, {"model": "m", "prompt": "x", "text_input": "x", "stream": True})
        await turns()
        replica = only_request(gateway).attempts[0].replica
        assert b"endpoint-load-metrics-format: text" in bytes(loop.transports[0].written)
        loop.transports[0].protocol.data_received(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
            b"endpoint-load-metrics: TEXT named_metrics.in_flight=3, named_metrics.inter_token_us=5000\r\n\r\n"
            b"9\r\ndata: a\n\n\r\n"
        )
        await turns()
        assert caller.text == b"data: a\n\n"
        assert (replica.report.in_flight, replica.report.inter_token_ns) == (3, 5 * MS)
        began = replica.reported_at
        loop.transports[0].protocol.data_received(b"9\r\ndata: b\n\n\r\n0\r\n\r\n")
        await turns()
        assert not gateway.machine.open
        assert replica.reported_at == began, "the report is as old as the stream"

    play(scene)
