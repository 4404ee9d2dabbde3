"""The gateway's rules of a fleet: the gateway reads them, and they say what the file says."""

from __future__ import annotations

import json

from fleets import TEXT, changed, parse

from isochrone.control.fleet.derived.gateway_rules import SOURCE, gateway_rules
from isochrone.gateway.rules.file import parse_rules
from isochrone.gateway.rules.gateway_rules import GatewayRules


def rules(text: str) -> GatewayRules:
    return parse_rules(gateway_rules(parse(text)), SOURCE)


def test_a_bare_fleet_has_the_gateways_own_defaults() -> None:
    assert rules("name: a") == GatewayRules()


def test_the_gateway_goes_by_what_the_file_says() -> None:
    read = rules(TEXT)
    assert read.defaults.deadline_ns == 100_000_000
    detector = read.of("detector")
    assert (detector.deadline_ns, detector.retries.ratio, detector.quota.concurrency) == (100_000_000, 0.2, 8)
    assert read.of("unnamed") == read.defaults


def test_versions_canaries_and_memory_are_not_in_it() -> None:
    read = rules(TEXT)
    assert read.of("pipeline").canary.version == ""
    assert read.of("pipeline").canary.weight == 0
    # What a loaded model takes must not be asked for once more of the worker that has it.
    assert read.of("detector").memory_bytes == 0
    assert gateway_rules(parse(TEXT)) == gateway_rules(parse(changed(("version: 1", "version: 2"), ("200MiB", "1GiB"))))


def test_sections_of_a_model_and_of_the_whole_gateway() -> None:
    read = rules(
        "name: a\ntraffic: {outliers: false, quota: {rate: 50}}\n"
        "models: {m: {policy: maglev, affinity: {header: x-agent-id}, slo: {deadline_ms: 2s, priority: 1},"
        " traffic: {hedge: false, breaker: {max_in_flight: 7}}}}"
    )
    model = read.of("m")
    assert (model.policy, model.affinity.header, model.deadline_ns, model.priority) == (
        "maglev",
        "x-agent-id",
        2 * 10**9,
        1,
    )
    assert (model.hedge.enabled, model.breaker.max_in_flight) == (False, 7)
    assert (read.outliers.enabled, read.quota.rate) == (False, 50)


def test_the_way_to_a_tier_is_twice_its_nearest_pools_distance_unless_said() -> None:
    pools = (
        "pools: {e: {tier: edge}, c: {tier: core, distance_ms: 4}, d: {tier: core, distance_ms: 6},"
        " f: {tier: far, distance_ms: 9}}"
    )
    read = rules(f"name: a\n{pools}\nmodels: {{m: {{traffic: {{tiers: [edge, core]}}}}}}")
    assert read.of("m").tiers.order == ("edge", "core")
    assert read.of("m").tiers.way_ns == {"core": 8_000_000}
    said = rules(
        f"name: a\n{pools}\nmodels: {{m: {{traffic: {{tiers: {{order: [edge, core], way_ms: {{core: 1}}}}}}}}}}"
    )
    assert said.of("m").tiers.way_ns == {"core": 1_000_000}


def test_divisions_of_models_and_of_the_defaults() -> None:
    read = rules(
        "name: a\ndefaults: {division: [split, core]}\n"
        "models: {a: {division: [edge, split, core]}, b: {division: {margin_ms: 3}}, c: {division: []}, d: {}}"
    )
    orders = {name: model.division.order for name, model in read.models.items()}
    assert orders == {
        "a": ("edge", "split", "core"),
        "b": ("split", "core"),
        "c": (),
        "d": ("split", "core"),
    }
    assert read.of("b").division.margin_ns == 3_000_000
    assert "division" not in json.loads(gateway_rules(parse(TEXT)))["defaults"]


def test_equal_fleets_have_equal_texts() -> None:
    text = gateway_rules(parse(TEXT))
    assert text == gateway_rules(parse(TEXT))
    assert json.loads(text)["models"].keys() == {"preprocess", "detector", "pipeline"}


def test_requests_of_models_whose_pools_may_all_be_empty_wait_for_a_worker() -> None:
    text = """
name: a
pools:
  slow: {max: 2, autoscale: {zero_after_seconds: 60, start_up_seconds: 40}}
  quick: {max: 2, autoscale: {zero_after_seconds: 60, start_up_seconds: 5}}
  kept: {max: 2, autoscale: {}}
models:
  one: {pools: [quick]}
  both: {pools: [slow, quick]}
  mixed: {pools: [quick, kept]}
  own: {pools: [quick], traffic: {waiting_room: {max_requests: 7}}}
  none: {pools: [quick], traffic: {waiting_room: {max_requests: 0}}}
"""
    read = rules(text)
    rooms = {
        name: (each.waiting_room.max_requests, each.waiting_room.max_wait_ns) for name, each in read.models.items()
    }
    wait = 30_000_000_000
    assert rooms == {
        "one": (1000, wait),
        "both": (1000, 80_000_000_000),
        "mixed": (0, wait),
        "own": (7, wait),
        "none": (0, wait),
    }
    assert read.defaults.waiting_room.max_requests == 0


def test_models_that_the_file_does_not_name_wait_too_and_others_do_not_inherit_it() -> None:
    empty = "{max: 2, autoscale: {zero_after_seconds: 60}}"
    read = rules(
        f"name: a\npools: {{cpu: {empty}, kept: {{}}}}\ndefaults: {{pools: [cpu]}}\nmodels: {{m: {{pools: [kept]}}}}"
    )
    assert read.defaults.waiting_room.max_requests == 1000
    assert read.of("m").waiting_room.max_requests == 0
