"""Outlier ejection: which endpoints, for how long, and never more than the share, over any schedule."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from isochrone.gateway.placement.balancer import Balancer
from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.replicas import Endpoint, Replica
from isochrone.gateway.resilience.outliers import OutlierRules, Outliers

MS = 1_000_000
SECOND = 1_000 * MS
RULES = OutlierRules()


def fleet_of(count: int, rules: OutlierRules = RULES) -> tuple[Outliers, list[Endpoint]]:
    outliers = Outliers(rules)
    endpoints = [Endpoint(f"worker{number}:8000") for number in range(count)]
    outliers.endpoints_changed(endpoints, 0)
    return outliers, endpoints


def fail(outliers: Outliers, endpoint: Endpoint, times: int, now: int) -> list[str]:
    ejections = [outliers.ended(endpoint, "detector", MS, True, now) for _ in range(times)]
    return [ejection.reason for ejection in ejections if ejection]


def serve(
    outliers: Outliers, endpoint: Endpoint, now: int, *, well: int = 100, failed: int = 0, latency_ms: float = 5
) -> None:
    """So many requests end, failures spread among the good ones so that few are in a row."""
    for number in range(well + failed):
        fails = number * failed // (well + failed) != (number + 1) * failed // (well + failed)
        assert outliers.ended(endpoint, "detector", int(latency_ms * MS), fails, now) is None


def test_failures_in_a_row_eject_at_once() -> None:
    outliers, (first, second) = fleet_of(2)
    assert fail(outliers, first, 4, SECOND) == []
    outliers.ended(first, "detector", MS, False, SECOND)
    assert fail(outliers, first, 4, SECOND) == []
    assert fail(outliers, first, 1, SECOND) == ["5 failures in a row"]
    assert first.ejected_until == SECOND + RULES.base_ns
    assert second.ejected_until == 0
    # It comes back slowly.
    assert first.joined_at == first.ejected_until


def test_each_ejection_is_longer_up_to_the_most_and_good_conduct_is_rewarded() -> None:
    outliers, (first, _) = fleet_of(2)
    now, lengths = SECOND, []
    for _ in range(14):
        assert len(fail(outliers, first, 5, now)) == 1
        lengths.append((first.ejected_until - now) // SECOND)
        now = first.ejected_until
    assert lengths == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 60, 60]
    for _ in range(30):
        now += SECOND
        outliers.tick(now)
    fail(outliers, first, 5, now)
    assert first.ejected_until == now + RULES.base_ns


def test_failures_of_requests_sent_before_an_ejection_do_not_eject_again() -> None:
    outliers, (first, _) = fleet_of(2)
    assert len(fail(outliers, first, 50, SECOND)) == 1
    assert fail(outliers, first, 4, first.ejected_until) == []


def test_the_last_of_two_and_a_lone_one_stay() -> None:
    outliers, (first, second) = fleet_of(2)
    assert len(fail(outliers, first, 5, SECOND)) == 1
    assert fail(outliers, second, 50, SECOND) == []
    lone, (only,) = fleet_of(1)
    assert fail(lone, only, 50, SECOND) == []


def test_a_low_success_rate_is_found_in_a_fleet_of_four() -> None:
    outliers, endpoints = fleet_of(4)
    for endpoint in endpoints[1:]:
        serve(outliers, endpoint, SECOND)
    serve(outliers, endpoints[0], SECOND, well=70, failed=30)
    (ejection,) = outliers.tick(2 * SECOND)
    assert ejection.endpoint is endpoints[0]
    assert ejection.reason == "success rate 0.700, the others' is 1.000"


def test_single_failures_eject_no_endpoint() -> None:
    outliers, endpoints = fleet_of(4)
    serve(outliers, endpoints[0], SECOND, well=95, failed=5)
    for endpoint in endpoints[1:]:
        serve(outliers, endpoint, SECOND)
    assert outliers.tick(2 * SECOND) == []


def test_if_all_endpoints_fail_alike_none_is_an_outlier() -> None:
    outliers, endpoints = fleet_of(5)
    for endpoint, failed in zip(endpoints, (40, 45, 50, 55, 60), strict=True):
        serve(outliers, endpoint, SECOND, well=100, failed=failed)
    assert outliers.tick(2 * SECOND) == []


def test_too_few_requests_or_endpoints_say_nothing() -> None:
    outliers, endpoints = fleet_of(4)
    serve(outliers, endpoints[0], SECOND, well=10, failed=9)
    for endpoint in endpoints[1:]:
        serve(outliers, endpoint, SECOND)
    assert outliers.tick(2 * SECOND) == []
    outliers, endpoints = fleet_of(2)
    serve(outliers, endpoints[0], SECOND, well=70, failed=30)
    serve(outliers, endpoints[1], SECOND)
    assert outliers.tick(2 * SECOND) == []


def test_one_that_has_all_but_stopped_is_found_and_one_that_is_just_slower_is_kept() -> None:
    outliers, endpoints = fleet_of(4)
    for turn in range(100):
        for endpoint, latency in zip(endpoints, (5, 5, 10, 100), strict=True):
            outliers.ended(endpoint, "detector", latency * MS, False, SECOND + turn)
    (ejection,) = outliers.tick(2 * SECOND)
    assert ejection.endpoint is endpoints[3]
    assert "times the fleet's median" in ejection.reason


def test_a_worker_with_heavy_models_is_not_slow() -> None:
    outliers, endpoints = fleet_of(4)
    for turn in range(100):
        for endpoint in endpoints:
            model, latency = ("planner", 400) if endpoint is endpoints[0] else ("detector", 5)
            outliers.ended(endpoint, model, latency * MS, False, SECOND + turn)
    assert outliers.tick(2 * SECOND) == []


def test_each_tick_resets_the_counts() -> None:
    outliers, endpoints = fleet_of(4)
    for number in range(12):
        for endpoint in endpoints[1:]:
            serve(outliers, endpoint, number * SECOND)
        serve(outliers, endpoints[0], number * SECOND, well=4, failed=4)
        assert outliers.tick((number + 1) * SECOND) == []


def test_a_smaller_fleet_ends_ejections_above_its_limit() -> None:
    outliers, endpoints = fleet_of(4)
    for now, endpoint in enumerate(endpoints[:2], 1):
        fail(outliers, endpoint, 5, now * SECOND)
    outliers.endpoints_changed(endpoints[:2], 3 * SECOND)
    assert endpoints[0].ejected_until <= 3 * SECOND < endpoints[1].ejected_until
    outliers.endpoints_changed(endpoints[:1], 3 * SECOND)
    outliers.endpoints_changed([endpoints[1]], 3 * SECOND)
    assert endpoints[1].ejected_until <= 3 * SECOND


def test_switched_off_no_endpoint_is_ejected() -> None:
    outliers, endpoints = fleet_of(4, OutlierRules(enabled=False))
    assert fail(outliers, endpoints[0], 50, SECOND) == []
    assert outliers.tick(2 * SECOND) == []


def test_an_unknown_endpoint_is_not_counted() -> None:
    outliers, _ = fleet_of(2)
    stranger = Endpoint("stranger:8000")
    assert fail(outliers, stranger, 50, SECOND) == []


class First(Policy):
    """The first of the members."""

    name = "first"

    def choose(self, demand: Demand, now: int) -> Replica:
        return self.replicas[0]


def test_the_balancer_excludes_ejected_endpoints_until_too_few_are_left() -> None:
    outliers, endpoints = fleet_of(4, OutlierRules(max_share=1))
    balancer = Balancer(First(Random(1)), Random(1))
    balancer.update([Replica(endpoint) for endpoint in endpoints], SECOND)
    for out, endpoint in enumerate(endpoints[:3], 1):
        fail(outliers, endpoint, 5, SECOND)
        balancer.refresh(SECOND)
        assert balancer.panicking == (out == 3)
        assert len(balancer.eligible) == (4 if out == 3 else 4 - out)
    balancer.refresh(SECOND + RULES.base_ns)
    assert not balancer.panicking
    assert len(balancer.eligible) == 4


@given(
    share=st.sampled_from([0, 0.1, 0.34, 0.5, 1]),
    size=st.integers(1, 7),
    steps=st.lists(
        st.tuples(st.integers(0, 6), st.sampled_from(["fail", "well", "tick", "shrink", "grow"]), st.integers(0, 9)),
        max_size=80,
    ),
)
def test_never_more_than_the_share_is_out(share: float, size: int, steps: list[tuple[int, str, int]]) -> None:
    rules = OutlierRules(max_share=share, least_requests=2, consecutive_failures=2)
    outliers, endpoints = fleet_of(size, rules)
    everybody, now = list(endpoints), SECOND
    for who, event, passed in steps:
        now += passed * SECOND // 4
        endpoint = endpoints[who % len(endpoints)]
        if event == "tick":
            outliers.tick(now)
        elif event == "shrink" and len(endpoints) > 1:
            endpoints.remove(endpoint)
            outliers.endpoints_changed(endpoints, now)
        elif event == "grow":
            back = everybody[who % len(everybody)]
            if back not in endpoints:
                endpoints.append(back)
                outliers.endpoints_changed(endpoints, now)
        else:
            for _ in range(3):
                outliers.ended(endpoint, "detector", (who + 1) * MS, event == "fail", now)
        out = [endpoint for endpoint in endpoints if endpoint.ejected_until > now]
        assert len(out) <= share * len(endpoints)
        assert all(endpoint.ejected_until - now <= rules.most_ns for endpoint in out)


def test_new_rules_apply_at_once_and_records_are_kept() -> None:
    outliers, (first, second, *_) = fleet_of(4)
    assert fail(outliers, first, 3, SECOND) == []
    outliers.configure(OutlierRules(consecutive_failures=4), SECOND)
    assert fail(outliers, first, 1, SECOND) == ["4 failures in a row"]
    assert fail(outliers, second, 4, SECOND) == ["4 failures in a row"]
    # In a smaller share, the one whose time is nearest comes back.
    outliers.configure(OutlierRules(max_share=0.25), 2 * SECOND)
    assert sum(endpoint.ejected_until > 2 * SECOND for endpoint in (first, second)) == 1
    outliers.configure(OutlierRules(enabled=False), 3 * SECOND)
    assert all(endpoint.ejected_until <= 3 * SECOND for endpoint in (first, second))
    assert fail(outliers, first, 50, 4 * SECOND) == []
