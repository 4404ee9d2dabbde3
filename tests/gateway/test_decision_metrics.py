"""Decisions on a gateway's metrics page: by model, version, policy and kind of decision."""

from __future__ import annotations

from typing import Any, cast

from offline import add_members

from isochrone.gateway.gateway import Gateway
from isochrone.gateway.metrics import GatewayCollector
from isochrone.gateway.policies.prequal.policy import Prequal
from isochrone.gateway.rules.file import parse_rules
from isochrone.observe.snapshot import WireSnapshot
from isochrone.settings.wire_limits import WireLimits

RULES = "defaults: {policy: prequal, tiers: [edge, core], shadow: {share: 1, version: 2}}"


def samples(gateway: Gateway) -> dict[tuple[str, ...], float]:
    families = GatewayCollector(gateway, cast("Any", WireSnapshot))._decisions()
    return {
        (sample.name.removeprefix("isochrone_gateway_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_decision_is_counted_once() -> None:
    gateway = Gateway(parse_rules(RULES, "rules.yaml"), WireLimits(), seed=1)
    add_members(gateway.fleet, {"m": {"1": ""}}, {"m": {"1": ""}})
    served = gateway.fleet.model("m")
    for number, part in enumerate((served.current, *served.current.tiers)):
        assert isinstance(part.balancer.policy, Prequal)
        part.balancer.policy.random_fallback = 10**number
    served.admission.moved, served.admission.rejections, served.admission.probes = 1, 2, 3
    served.tiers.spilled = 4
    assert served.shadow is not None
    served.shadow.copied, served.shadow.left_out = 5, 6
    found = samples(gateway)
    assert found["policy_decisions_total", "m", "1", "prequal", "random_fallback"] == 111, (
        "tiers are parts of the version"
    )
    assert found["policy_decisions_total", "m", "1", "prequal", "trial"] == 0
    counted = ("admission_moved", "admission_rejected", "admission_probes", "tier_spills", "shadow_copies")
    assert [found[f"{name}_total", "m"] for name in counted] == [1, 2, 3, 4, 5]
    assert found["shadow_copies_left_out_total", "m"] == 6
