"""Requests whose worker's process ends under them, without sockets: who waits, who goes where, who is rejected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from offline import Caller, OfflineLoop, RecordingTransport, add_members, turns

from isochrone.clock import now_ns
from isochrone.gateway.caller_requests import CallerRequest
from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.front.http_requests import HttpRequest
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.placement.balancer import BalancerRules
from isochrone.gateway.requests import accounts
from isochrone.gateway.requests.instructions import Do
from isochrone.gateway.resilience.retry_budget import RetryRules
from isochrone.gateway.resilience.suspects import QuarantineRules
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head

_BODY = b'{"model_name":"m","model_version":"1","outputs":[]}'
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
_READY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Network(OfflineLoop):
    """Connections by host; the processes of some hosts have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.dead: set[str] = set()
        self.connected: list[tuple[str, RecordingTransport]] = []

    async def create_connection(self, factory: Callable[[], Any], *arguments: Any, **keywords: Any) -> Any:  # type: ignore[override]
        host = arguments[0]
        if host in self.dead:
            raise ConnectionRefusedError(111, "Connection refused")
        transport, protocol = await super().create_connection(factory, *arguments, **keywords)
        self.connected.append((host, transport))
        return transport, protocol

    def cut(self, host: str) -> None:
        """Every connection to it ends."""
        cut = [transport for each, transport in self.connected if each == host]
        self.connected = [pair for pair in self.connected if pair[0] != host]
        for transport in cut:
            transport.protocol.connection_lost(None)

    def end(self, host: str) -> None:
        """So does its process."""
        self.dead.add(host)
        self.cut(host)


class Scene:
    def __init__(self, loop: Network, rules: ModelRules) -> None:
        self.loop = loop
        # Never to a worker that is said to be unhealthy, however few are healthy.
        rules = replace(rules, balancer=BalancerRules(panic_threshold=0.0))
        self.gateway = Gateway(GatewayRules(defaults=rules), WireLimits(), seed=1)
        serves = {"m": {"1": ""}}
        add_members(self.gateway.fleet, serves, serves, serves)
        self.callers: list[Caller] = []
        self.sent = 0

    def only(self, *hosts: str) -> None:
        for address, member in self.gateway.fleet.members.items():
            member.endpoint.healthy = address[0] in hosts
        self.gateway.fleet.rebuild()

    async def send(self, *numbers: int, size: int = 0) -> list[Caller]:
        """``size``: bytes of a binary tensor behind the JSON part."""
        sent = []
        for number in numbers:
            self.sent += 1
            start = b'{"id": "%d", "inputs": [%d]}' % (self.sent, number)
            length = ((b"inference-header-content-length", b"%d" % len(start)),) if size else ()
            head = Head(b"POST", b"/v2/models/m/infer", ((b"host", b"gw"), *length))
            caller = Caller(head, start + number.to_bytes(1, "big") * size)
            GatewayApplication(self.gateway).route(head).handle(caller)  # type: ignore[arg-type]
            sent.append(caller)
        self.callers += sent
        await turns(10)
        return sent

    def under_way(self) -> dict[str, list[CallerRequest]]:
        found: dict[str, list[CallerRequest]] = {}
        for request in self.gateway.machine.open:
            assert isinstance(request, CallerRequest)
            for attempt in request.attempts:
                found.setdefault(attempt.replica.endpoint.address[0], []).append(request)
        return found

    async def answer(self, host: str) -> None:
        """Every request that is on a host."""
        for request in self.under_way().get(host, []):
            for attempt in list(request.attempts):
                sent: Any = attempt.sent  # type: ignore[attr-defined]
                call = getattr(sent, "launched", None) or sent
                if attempt.replica.endpoint.address[0] == host:
                    call.connection.data_received(_ANSWER)
        await turns(10)

    async def end(self, host: str) -> None:
        self.loop.end(host)
        await turns(20)

    async def close(self) -> None:
        await self.gateway.close()


def play(scene: Callable[[Scene], Awaitable[None]], rules: ModelRules | None = None) -> None:
    async def run(loop: Network) -> None:
        made = Scene(loop, rules or ModelRules())
        try:
            await scene(made)
        finally:
            await made.close()

    with asyncio.Runner(loop_factory=Network) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Network)
        runner.run(run(loop))


def test_bystanders_go_on_one_at_a_time_on_each_worker() -> None:
    async def scene(fleet: Scene) -> None:
        fleet.only("a")
        callers = await fleet.send(1, 2, 3, 4, 5)
        fleet.only("a", "b", "c")
        await fleet.end("a")
        while not all(caller.status for caller in callers):
            found = fleet.under_way()
            assert {len(each) for each in found.values()} == {1}
            assert set(found) <= {"b", "c"}
            for host in ("b", "c"):
                await fleet.answer(host)
        assert {caller.status for caller in callers} == {200}
        assert fleet.gateway.fleet.model("m").suspects == 5
        assert not fleet.gateway.fleet.model("m").suspected

    play(scene)


def test_rules_may_let_several_share_a_worker() -> None:
    """Then the second process that ends may have been any one's: those it had go on alone."""

    async def scene(fleet: Scene) -> None:
        fleet.only("a")
        callers = await fleet.send(*range(1, 9))
        killer = callers[0]
        fleet.only("a", "b", "c")
        await fleet.end("a")
        found = fleet.under_way()
        assert {host: len(each) for host, each in found.items()} == {"b": 4, "c": 4}
        (where,) = [host for host, each in found.items() if any(one.exchange is killer for one in each)]
        (left,) = {"b", "c"} - {where}
        await fleet.answer(left)
        await fleet.end(where)
        while not killer.status:
            (on_trial,) = fleet.under_way()[left]
            if on_trial.exchange is not killer:
                await fleet.answer(left)
                continue
            await fleet.end(left)
        assert killer.status == 422
        assert fleet.gateway.fleet.model("m").quarantines == 1
        assert 422 not in {caller.status for caller in callers[1:]}

    rules = replace(ModelRules(), quarantine=QuarantineRules(suspects_at_once=4))
    play(scene, rules)


def test_the_one_that_loses_a_second_process_is_rejected_and_those_like_it_too() -> None:
    async def scene(fleet: Scene) -> None:
        told: list[tuple[str, str, str]] = []
        fleet.gateway.on_event = lambda *event: told.append(event)
        fleet.only("a")
        killer, *others = await fleet.send(1, 2, 3)
        fleet.only("a", "b", "c")
        await fleet.end("a")
        (where,) = [host for host, found in fleet.under_way().items() if found[0].exchange is killer]
        # Another caller's, sent to the same worker meanwhile, and one that is like the killer.
        fleet.only(where)
        (beside, alike) = await fleet.send(9, 1)
        fleet.only("b", "c")
        await fleet.end(where)
        assert (killer.status, alike.status) == (422, 422)
        assert b"isolation" in killer.text
        (again,) = await fleet.send(1)
        assert again.status == 422
        left = ({"b", "c"} - {where}).pop()
        for _ in range(6):
            await fleet.answer(left)
        assert {caller.status for caller in (*others, beside)} == {200}
        assert [(what, about) for what, about, _ in told] == [("request quarantined", "m")]
        served = fleet.gateway.fleet.model("m")
        assert (served.quarantines, served.quarantine_rejections) == (1, 1)

    play(scene)


@pytest.mark.interpreted
def test_large_requests_are_known_by_their_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[CallerRequest] = []
    take = HttpRequest.take_fingerprint

    def counted(request: HttpRequest) -> bytes:
        hashed.append(request)
        return take(request)

    monkeypatch.setattr(HttpRequest, "take_fingerprint", counted)

    async def scene(fleet: Scene) -> None:
        fleet.only("a")
        (killer,) = await fleet.send(1, size=100_000)
        fleet.only("a", "b", "c")
        await fleet.end("a")
        ((host, _),) = fleet.under_way().items()
        await fleet.end(host)
        assert killer.status == 422
        assert len(hashed) == 1
        (alike,) = await fleet.send(1, size=100_000)
        assert alike.status == 422
        assert len(hashed) == 2
        # Of those that end otherwise nothing is hashed.
        (left,) = {"b", "c"} - {host}
        others = await fleet.send(2, 3, size=100_000)
        await fleet.answer(left)
        assert {other.status for other in others} == {200}
        assert len(hashed) == 2

    play(scene)


def test_a_hedge_counts() -> None:
    async def scene(fleet: Scene) -> None:
        fleet.only("a")
        (caller,) = await fleet.send(1)
        fleet.only("a", "b", "c")
        (request,) = fleet.gateway.machine.open
        hedge = accounts.begin(request, request.replica_set.replicas["b:1"], now_ns())
        fleet.gateway.execute([(Do.SEND, request, hedge)])
        await turns(10)
        await fleet.end("a")
        assert set(fleet.under_way()) == {"b"}
        await fleet.end("b")
        assert caller.status == 422

    play(scene)


def test_a_connection_that_ends_alone_makes_no_suspect() -> None:
    async def scene(fleet: Scene) -> None:
        fleet.only("a")
        callers = await fleet.send(1, 2)
        fleet.only("a", "b", "c")
        fleet.loop.cut("a")
        await turns(10)
        # They wait for what a fresh connection tells.
        assert fleet.under_way() == {}
        ((_, fresh),) = [pair for pair in fleet.loop.connected if pair[0] == "a"]
        assert b"/v2/health/ready" in fresh.written
        fresh.protocol.data_received(_READY)
        await turns(10)
        for host in "abc":
            await fleet.answer(host)
        assert {caller.status for caller in callers} == {200}
        assert fleet.gateway.fleet.model("m").suspects == 0

    play(scene)


def test_a_worker_that_leaves_in_good_order_makes_no_suspect() -> None:
    async def scene(fleet: Scene) -> None:
        fleet.only("a")
        (caller,) = await fleet.send(1)
        fleet.only("a", "b", "c")
        fleet.gateway.fleet.members["a:1"].endpoint.draining = True
        await fleet.end("a")
        for host in "bc":
            await fleet.answer(host)
        assert caller.status == 200
        assert fleet.gateway.fleet.model("m").suspects == 0

    play(scene)


def test_callers_that_leave_make_room() -> None:
    async def scene(fleet: Scene) -> None:
        fleet.only("a")
        callers = await fleet.send(1, 2, 3)
        fleet.only("a", "b")
        await fleet.end("a")
        (on_trial,) = fleet.under_way()["b"]
        waiting = [caller for caller in callers if caller is not on_trial.exchange]
        waiting[0].owner.abandoned()
        on_trial.abandoned()
        await turns(10)
        assert [request.exchange for request in fleet.under_way()["b"]] == [waiting[1]]
        await fleet.answer("b")
        assert waiting[1].status == 200

    play(scene)


def test_without_retries_the_caller_is_told_and_its_next_try_goes_alone() -> None:
    async def scene(fleet: Scene) -> None:
        fleet.only("a")
        (first,) = await fleet.send(1)
        await fleet.end("a")
        assert first.status == 503
        fleet.only("b")
        (second,) = await fleet.send(1)
        assert set(fleet.under_way()) == {"b"}
        await fleet.end("b")
        assert second.status == 422
        fleet.only("c")
        (third, other) = await fleet.send(1, 2)
        assert third.status == 422
        await fleet.answer("c")
        assert other.status == 200

    play(scene, replace(ModelRules(), retries=RetryRules(enabled=False)))


def test_switched_off() -> None:
    async def scene(fleet: Scene) -> None:
        fleet.only("a")
        (caller,) = await fleet.send(1)
        fleet.only("a", "b", "c")
        await fleet.end("a")
        (next_host,) = fleet.under_way()
        await fleet.end(next_host)
        assert len(fleet.under_way()) == 1
        assert caller.status == 0
        assert fleet.gateway.fleet.model("m").suspects == 0

    play(scene, replace(ModelRules(), quarantine=QuarantineRules(enabled=False)))
