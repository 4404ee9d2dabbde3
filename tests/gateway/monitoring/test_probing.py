"""Probes are sent when the policy needs them, whatever the size of the fleet."""

from __future__ import annotations

import pytest
from offline import Caller, OfflineLoop, add_members, offline, turns

from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head

HEAD = Head(b"POST", b"/v2/models/m/infer", ((b"host", b"gw"), (b"inference-header-content-length", b"2")))
PROBE = b"GET /v2/health/ready"


@pytest.mark.parametrize(
    ("members", "pool", "probed"),
    [(10, 4, True), (5, 4, True), (20, 16, True), (20, 32, True), (4, 4, False), (16, 16, False)],
)
def test_probes_are_sent_when_the_policy_needs_them(members: int, pool: int, probed: bool) -> None:
    """A fleet larger than the pool is known by probes alone, however small it is."""

    async def run(loop: OfflineLoop) -> None:
        rules = ModelRules(policy="prequal", policy_options={"pool": pool})
        gateway = Gateway(GatewayRules(rules), WireLimits(), seed=1)
        add_members(gateway.fleet, *[{"m": {"1": ""}}] * members)
        application = GatewayApplication(gateway)
        for _ in range(20):
            application.route(HEAD).handle(Caller(HEAD))  # type: ignore[arg-type]
        await turns()
        assert any(PROBE in transport.written for transport in loop.transports) is probed
        await gateway.close()

    offline(run)
