"""A replica whose version was unloaded a moment ago: its endpoint's repository index is read at once."""

from __future__ import annotations

from typing import Any

import pytest
from offline import Caller, OfflineLoop, add_members, offline, only_request

from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head

JSON = ((b"content-type", b"application/json"),)
UNLOADED = b'{"error":"\'m\' version 1 is not at ready state (unloaded)"}'


@pytest.mark.interpreted
@pytest.mark.parametrize(("path", "looks"), [(b"/v2/models/m/infer", True), (b"/v2/models/m/versions/1/infer", False)])
def test_a_replica_that_lost_its_version_is_looked_at_although_another_one_takes_the_request(
    path: bytes, looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every request that is placed there until the next look costs a retry, until the budget denies them."""

    async def scene(loop: OfflineLoop) -> None:
        gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
        add_members(gateway.fleet, {"m": {"1": ""}}, {"m": {"1": ""}})
        looked: list[str] = []
        monkeypatch.setattr(gateway, "look_at", lambda address, now: looked.append(address))
        head = Head(b"POST", path, ((b"host", b"gw"),))
        caller: Any = Caller(head, b"{}")
        GatewayApplication(gateway).route(head).handle(caller)
        (first,) = only_request(gateway).attempts
        assert first.sent is not None
        # No connection is made here: the answer comes in its stead.
        first.sent.cancel()
        first.whole(503, JSON, UNLOADED, ())
        (second,) = only_request(gateway).attempts
        assert second.replica is not first.replica
        assert looked == ([first.replica.endpoint.address] if looks else [])
        await gateway.close()

    offline(scene)
