"""Decisions on a gateway's metrics page: by model, version, policy and kind of decision."""

from __future__ import annotations

from typing import Any, cast

import pytest
from offline import add_members
from prometheus_client.exposition import choose_encoder

from isochrone.gateway.gateway import Gateway
from isochrone.gateway.metrics import GatewayCollector
from isochrone.gateway.policies.prequal.policy import Prequal
from isochrone.gateway.rules.file import parse_rules
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.observe.loop_lag import LoopLag
from isochrone.observe.metrics.pieces import MetricsPieces
from isochrone.observe.snapshot import WireSnapshot
from isochrone.settings.wire_limits import WireLimits

RULES = "defaults: {policy: prequal, tiers: [edge, core], shadow: {share: 1, version: 2}}"


def samples(gateway: Gateway) -> dict[tuple[str, ...], float]:
    families = GatewayCollector(gateway, cast("Any", WireSnapshot))._decisions(gateway.fleet.models.values())
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


def test_divisions_are_counted_by_model_and_kind_where_the_gateway_chooses() -> None:
    rules = "models: {divided: {division: [edge, core]}}"
    gateway = Gateway(parse_rules(rules, "rules.yaml"), WireLimits(), seed=1)
    add_members(gateway.fleet, {"divided": {"1": ""}, "whole": {"1": ""}})
    gateway.fleet.model("whole")
    divisions = gateway.fleet.model("divided").divisions
    assert divisions is not None
    divisions.requests["edge"] += 2
    found = {labels: value for labels, value in samples(gateway).items() if labels[0] == "division_requests_total"}
    assert found == {
        ("division_requests_total", "divided", "edge"): 2,
        ("division_requests_total", "divided", "split"): 0,
        ("division_requests_total", "divided", "core"): 0,
    }


def by_family(page: bytes) -> list[bytes]:
    """The families of a page in the order of their names, and its end."""
    *families, last = page.split(b"# HELP ")
    last, end, _ = last.partition(b"# EOF")
    return [*sorted([*families, last]), end]


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_a_page_in_pieces_is_the_page(accept: str) -> None:
    gateway = Gateway(parse_rules(RULES, "rules.yaml"), WireLimits(), seed=1)
    names = [f"m{number}" for number in range(50)]
    add_members(gateway.fleet, {name: {"1": ""} for name in names})
    for number, name in enumerate(names):
        gateway.fleet.model(name).requests = number
    # The wire's figures are not the gateway's.
    collector = GatewayCollector(gateway, lambda: WireSnapshot(0, 0, 0, 0, 0, 0, LoopLag().histogram()))
    encode, _ = choose_encoder(accept)
    page = MetricsPieces(encode)
    pieces = 0
    for piece in collector.pieces():
        page.add(piece)
        pieces += 1
    assert by_family(page.page()) == by_family(encode(collector))
    assert pieces > 10


def test_a_page_without_models_has_their_families() -> None:
    gateway = Gateway(GatewayRules(), WireLimits())
    collector = GatewayCollector(gateway, lambda: WireSnapshot(0, 0, 0, 0, 0, 0, LoopLag().histogram()))
    encode, _ = choose_encoder("")
    page = MetricsPieces(encode)
    for piece in collector.pieces():
        page.add(piece)
    assert by_family(page.page()) == by_family(encode(collector))
    assert b"# TYPE isochrone_gateway_requests_total counter" in page.page()


def test_a_gateway_of_a_fleet_says_whether_it_reaches_the_store() -> None:
    gateway = Gateway(GatewayRules(), WireLimits())
    collector = GatewayCollector(gateway, lambda: WireSnapshot(0, 0, 0, 0, 0, 0, LoopLag().histogram()))

    def shown() -> list[float]:
        name = "isochrone_gateway_store_connected"
        (family,) = (family for family in collector.collect() if family.name == name)
        return [sample.value for sample in family.samples]

    assert shown() == []
    connected = True
    gateway.store_connected = lambda: connected
    assert shown() == [1.0]
    connected = False
    assert shown() == [0.0]
