"""What a gateway counts of a request: nothing that goes wrong with it touches an answer, and versions keep their
series."""

from __future__ import annotations

from typing import Any

import pytest
from offline import OfflineLoop, add_members, offline, turns
from structlog.testing import capture_logs

from isochrone.clock import now_ns
from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head

HEAD = Head(b"POST", b"/v2/models/m/infer", ((b"host", b"gw"),))
BODY = b'{"model_name":"m","outputs":[]}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)


class Exchange:
    """A caller's side that notes its answer."""

    def __init__(self) -> None:
        self.head = HEAD
        self.body = b'{"inputs": []}'
        self.arrived = now_ns()
        self.owner: Any = None
        self.on_writable: Any = None
        self.reserved = 0
        self.is_congested = False
        self.status = 0
        self.aborted = False

    def respond(self, status: int, headers: Any, body: Any) -> None:
        self.status = status

    def abort(self) -> None:
        self.aborted = True


class Faulty:
    """Durations that cannot be added to."""

    version = "1"

    @property
    def pending(self) -> list[int]:
        raise RuntimeError("a fault of ours")


@pytest.mark.interpreted  # compiled classes take no other object as an attribute
def test_a_fault_in_counting_does_not_touch_the_answer() -> None:
    async def scene(loop: OfflineLoop) -> None:
        gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
        add_members(gateway.fleet, {"m": {"1": ""}})
        caller = Exchange()
        GatewayApplication(gateway).route(HEAD).handle(caller)  # type: ignore[arg-type]
        await turns(10)
        ((request,),) = [gateway.machine.open]
        (attempt,) = request.attempts
        attempt.replica_set.durations = Faulty()  # type: ignore[assignment]
        with capture_logs() as lines:
            loop.transports[-1].protocol.data_received(ANSWER)
            await turns(10)
        assert (caller.status, caller.aborted) == (200, False)
        assert [line["event"] for line in lines] == ["a request could not be counted"]
        await gateway.close()

    offline(scene)


def labels(gateway: Gateway) -> set[str]:
    return {each.version for each in gateway.fleet.model("m").durations.versions() if any(each.of_outcome)}


def test_requests_of_an_outage_are_counted_in_the_version_that_was_served() -> None:
    async def scene(loop: OfflineLoop) -> None:
        gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
        add_members(gateway.fleet, {"m": {"7": ""}})
        assert gateway.fleet.model("m").current.version == "7"
        for member in gateway.fleet.members.values():
            member.endpoint.healthy = False
            member.serves = {}
        gateway.fleet.model("m").outdate()
        gateway.fleet.rebuild()
        caller = Exchange()
        GatewayApplication(gateway).route(HEAD).handle(caller)  # type: ignore[arg-type]
        await turns(10)
        loop.transports[-1].protocol.connection_lost(None) if loop.transports else None
        await turns(10)
        assert caller.status >= 500
        assert labels(gateway) == {"7"}
        await gateway.close()

    offline(scene)
