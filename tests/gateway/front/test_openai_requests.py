"""OpenAI's calls through a gateway: placed by what their bodies say, pinned by a header, forwarded as they came."""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from offline import Caller, OfflineLoop, add_members, offline, only_request, turns

from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.front.openai_requests import OpenAIRequest
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.quota_rules import QuotaRules
from isochrone.gateway.traffic.shadow import ShadowRules
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head, Headers

Scene = Callable[[Gateway, OfflineLoop], Awaitable[None]]
TWO = {"m": {"1": "one", "2": "two"}, "a@b": {"1": ""}, "m@3": {"1": ""}}


def play(scene: Scene, rules: GatewayRules | None = None, members: int = 2) -> None:
    async def run(loop: OfflineLoop) -> None:
        gateway = Gateway(rules or GatewayRules(), WireLimits(), seed=1)
        add_members(gateway.fleet, *(TWO for _ in range(members)))
        await scene(gateway, loop)
        await gateway.close()

    offline(run)


def send(gateway: Gateway, path: str = "/v1/completions", headers: Headers = (), **body: Any) -> StreamingCaller:
    return send_bytes(gateway, json.dumps(body).encode(), path, headers)


def send_bytes(gateway: Gateway, body: bytes, path: str, headers: Headers = ()) -> StreamingCaller:
    head = Head(b"POST", path.encode(), ((b"host", b"gw"), *headers))
    caller = StreamingCaller(head, body)
    GatewayApplication(gateway).route(head).handle(caller)  # type: ignore[arg-type]
    return caller


class StreamingCaller(Caller):
    """One that takes an answer in pieces, too."""

    ended = aborted = False
    on_writable = None

    def start(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers

    def write(self, body: Any) -> None:
        self.text += b"".join(map(bytes, body))

    def end(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.aborted = True

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)["error"]
        return found


async def sent(loop: OfflineLoop, place: int = -1) -> tuple[bytes, bytes]:
    """The head and body of a request that a worker got."""
    await turns()
    head, _, body = bytes(loop.transports[place].written).partition(b"\r\n\r\n")
    return head, body


def pins(head: bytes) -> list[bytes]:
    return [line for line in head.split(b"\r\n") if line.startswith(b"x-isochrone-model")]


def test_the_body_passes_and_the_version_is_pinned() -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        body = {"prompt": "x", "model": "m", "unknown": [1]}
        send(gateway, headers=((b"x-isochrone-model", b"other=9"), (b"authorization", b"Bearer k")), **body)
        head, forwarded = await sent(loop)
        assert head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
        assert forwarded == json.dumps(body).encode()
        assert pins(head) == [b"x-isochrone-model: m=2"]
        assert b"authorization: Bearer k" in head

    play(scene)


@pytest.mark.parametrize(
    ("model", "pinned"), [("m@1", b"m=1"), ("a@b", b"a%40b=1"), ("m@3", b"m%403=1"), ("m@3@1", b"m%403=1")]
)
def test_a_version_in_the_name(model: str, pinned: bytes) -> None:
    """A model whose own name looks like one with a version takes precedence."""

    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        send(gateway, model=model)
        assert pins((await sent(loop))[0]) == [b"x-isochrone-model: " + pinned]

    play(scene)


def test_an_epoch_decides_for_every_call_after_it() -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        fleet = gateway.fleet
        fleet.lead()
        digests = {"1": "one", "2": "two"}
        for epoch, version in ((1, "1"), (2, "2"), (3, "1")):
            fleet.commit(epoch, {"m": Commitment(epoch, version, digests=digests)})
            for path in ("/v1/completions", "/v1/chat/completions"):
                send(gateway, path, model="m", stream=True)
                assert pins((await sent(loop))[0]) == [b"x-isochrone-model: m=%b" % version.encode()]
        caller = send(gateway, model="nobody")
        assert (caller.status, caller.error["code"], caller.error["param"]) == (404, "model_not_found", "model")
        caller = send(gateway, model="m@7")
        assert (caller.status, caller.error["code"]) == (404, "model_not_found")

    play(scene)


def test_a_held_model_waits() -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        gateway.fleet.lead()
        digests = {"1": "one", "2": "two"}
        gateway.fleet.commit(1, {"m": Commitment(1, "1", digests=digests)})
        gateway.fleet.hold(["m"])
        send(gateway, model="m")
        await turns()
        assert not loop.transports
        gateway.fleet.commit(2, {"m": Commitment(2, "2", digests=digests)})
        gateway.fleet.release(gateway.clock())
        gateway.release()
        assert pins((await sent(loop))[0]) == [b"x-isochrone-model: m=2"]

    play(scene)


def test_what_a_call_says_of_itself() -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        caller = send(gateway, headers=((b"x-request-timeout-ms", b"5000"),), model="m", stream=True, priority=2)
        request = only_request(gateway)
        assert request.kind is Kind.STREAM
        assert request.demand.priority == 2
        assert request.deadline == caller.arrived + 5_000_000_000
        assert request.demand.prompt == b""

    play(scene)


def test_prompts_are_read_where_the_policy_asks() -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        send(gateway, model="m", prompt="once upon a time")
        assert only_request(gateway).demand.prompt == b'"once upon a time"'
        only_request(gateway).abandoned()
        send_bytes(gateway, b'{"text_input": "once"}', "/v2/models/m/generate_stream")
        assert only_request(gateway).demand.prompt == b'"once"'

    play(scene, GatewayRules(defaults=ModelRules(policy="prefix")))


def test_a_compressed_body_arrives_decompressed() -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        body = json.dumps({"model": "m", "prompt": "x"}).encode()
        send_bytes(gateway, gzip.compress(body), "/v1/completions", ((b"content-encoding", b"gzip"),))
        head, forwarded = await sent(loop)
        assert forwarded == body
        assert b"content-encoding" not in head
        assert b"content-length: %d" % len(body) in head

    play(scene)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"model": ""}', b'{"model": 3}', b"{}"])
def test_what_names_no_model(body: bytes) -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        caller = send_bytes(gateway, body, "/v1/completions")
        assert (caller.status, caller.error["type"]) == (400, "invalid_request_error")
        assert caller.owner is None

    play(scene)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [(b"GET", b"/v1/completions", 405), (b"POST", b"/v1/models", 405), (b"POST", b"/v1/embeddings", 404)],
)
def test_other_requests(method: bytes, path: bytes, status: int) -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        head = Head(method, path, ())
        caller = StreamingCaller(head, b"{}")
        GatewayApplication(gateway).route(head).handle(caller)  # type: ignore[arg-type]
        assert (caller.status, caller.error["type"]) == (status, "invalid_request_error")

    play(scene)


def test_rejections_have_openais_form() -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        assert send(gateway, model="m").status == 0
        caller = send(gateway, model="m")
        assert (caller.status, caller.error["type"]) == (429, "rate_limit_error")
        assert dict(caller.headers)[b"retry-after"].isdigit()

    play(scene, GatewayRules(defaults=ModelRules(quota=QuotaRules(rate=0.001, burst=1))))


def test_without_a_worker() -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        caller = send(gateway, model="m")
        assert (caller.status, caller.error["type"], caller.error["code"]) == (503, "server_error", "unavailable")

    play(scene, members=0)


def test_a_shadow_gets_the_model_that_it_is() -> None:
    async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
        send(gateway, model="m")
        await turns()
        found = sorted(pins(bytes(transport.written))[0] for transport in loop.transports)
        assert found == [b"x-isochrone-model: a%40b=1", b"x-isochrone-model: m=2"]

    play(scene, GatewayRules(models={"m": ModelRules(shadow=ShadowRules(share=1.0, model="a@b"))}))


class TestStreams:
    """An answer that breaks off while it is passed on."""

    def passed(self, data: bytes) -> StreamingCaller:
        callers = []

        async def scene(gateway: Gateway, loop: OfflineLoop) -> None:
            caller = send(gateway, model="m", stream=True)
            callers.append(caller)
            await turns()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            protocol = loop.transports[-1].protocol
            protocol.data_received(head + b"%x\r\n%b\r\n" % (len(data), data))
            assert isinstance(caller.owner, OpenAIRequest)
            protocol.connection_lost(None)
            await turns()

        play(scene)
        return callers[0]

    def test_between_two_events_an_error_follows(self) -> None:
        caller = self.passed(b'data: {"id": "1"}\n\n')
        first, second, rest = caller.text.split(b"\n\n")
        assert (first, rest) == (b'data: {"id": "1"}', b"")
        assert json.loads(second.removeprefix(b"data: "))["error"]["type"] == "server_error"
        assert (caller.ended, caller.aborted) == (True, False)

    def test_within_an_event_the_connection_is_cut(self) -> None:
        caller = self.passed(b'data: {"id": "1')
        assert caller.text == b'data: {"id": "1'
        assert (caller.ended, caller.aborted) == (False, True)
