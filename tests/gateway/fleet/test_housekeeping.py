"""What a change costs: a fleet looks at what the change concerns, and models without requests wait for their turn."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offline import add_members, make_fleet

from isochrone.clock import MILLISECOND, SECOND
from isochrone.gateway.fleet import prepared_epoch
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.fleet.mismatches import Mismatches
from isochrone.gateway.fleet.served_model import ServedModel
from isochrone.gateway.housekeeping import finished
from isochrone.gateway.placement.balancer import Balancer
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.policies.prequal.policy import Prequal
from isochrone.gateway.replicas import LoadReport, Replica
from isochrone.gateway.requests.machine import RequestMachine
from isochrone.gateway.requests.request import Request
from isochrone.gateway.resilience.outliers import Outliers
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.settings.wire_limits import WireLimits

NAMES = [f"m{number}" for number in range(50)]
ALL = {name: {"1": ""} for name in NAMES}
OLD = -(10**18)


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> list[Any]:
    """The objects that a method is called of from now on."""
    calls: list[Any] = []
    original: Callable[..., Any] = getattr(owner, method)

    def counting(self: Any, *arguments: Any, **keywords: Any) -> Any:
        calls.append(self)
        return original(self, *arguments, **keywords)

    monkeypatch.setattr(owner, method, counting)
    return calls


def settled(workers: int = 4) -> Fleet:
    fleet = make_fleet()
    add_members(fleet, *[ALL] * workers)
    for name in NAMES:
        fleet.model(name)
    for _ in fleet.rebuilds.steps():
        pass
    fleet.refresh(SECOND)
    return fleet


def arrive(fleet: Fleet, name: str, now: int) -> Request:
    """A request of a model, which is sent."""
    request = Request(now)
    request.served, request.demand = fleet.model(name), Demand()
    RequestMachine(fleet).arrive(request, now)
    return request


def place(fleet: Fleet, name: str, now: int) -> str:
    """Where a request of a model goes."""
    return arrive(fleet, name, now).attempts[0].replica.endpoint.address


@pytest.mark.interpreted
class TestLooking:
    def test_a_refresh_looks_at_no_replica_set_when_nothing_has_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fleet = settled()
        place(fleet, "m3", SECOND)
        refreshed = counted(monkeypatch, Balancer, "refresh")
        rebuilt = counted(monkeypatch, ServedModel, "rebuild")
        for tick in range(2, 10):
            fleet.refresh(tick * SECOND)
            place(fleet, "m3", tick * SECOND)
        assert (refreshed, rebuilt) == ([], [])

    def test_after_a_change_only_models_with_requests_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fleet = settled(2)
        refreshed = counted(monkeypatch, Balancer, "refresh")
        fleet.members["a:1"].endpoint.healthy = False
        fleet.refresh(2 * SECOND)
        assert {place(fleet, "m3", 2 * SECOND + number) for number in range(20)} == {"b:1"}
        assert refreshed == [fleet.model("m3").current.balancer]

    def test_while_one_starts_slowly_every_refresh_is_a_change(self) -> None:
        fleet = settled(2)
        endpoint = fleet.members["a:1"].endpoint
        endpoint.joined_at = 2 * SECOND
        replica_set = fleet.model("m3").current
        weights = []
        for passed in (0, 1, 2, 3, 4, 5, 6):
            now = (2 + passed) * SECOND
            fleet.refresh(now)
            place(fleet, "m3", now)
            weights.append(replica_set.replicas["a:1"].weight)
        assert weights == [0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0]

    def test_the_end_of_an_ejection_is_a_change(self) -> None:
        fleet = settled(2)
        endpoint = fleet.members["a:1"].endpoint
        endpoint.ejected_until = 3 * SECOND
        eligible = []
        for now in (2 * SECOND, 3 * SECOND):
            fleet.refresh(now)
            place(fleet, "m3", now)
            eligible.append(len(fleet.model("m3").current.balancer.eligible))
        assert eligible == [1, 2]

    def test_counts_are_collected_of_models_that_had_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fleet = settled()
        place(fleet, "m3", SECOND)
        ticked = counted(monkeypatch, ServedModel, "tick")
        fleet.refresh(2 * SECOND)
        # One in a hundred in turn, in case something was missed.
        assert fleet.model("m3") in ticked
        assert len(ticked) <= 2

    def test_long_work_is_done_in_steps(self) -> None:
        fleet = settled()
        fleet.rebuild()
        assert len(fleet.rebuilds.outdated) == len(NAMES) + 1
        steps = fleet.rebuilds.steps()
        next(steps)
        assert 0 < len(fleet.rebuilds.outdated) < len(NAMES)
        list(steps)
        assert not fleet.rebuilds.is_due


class TestServing:
    def test_an_index_outdates_the_models_that_differ(self) -> None:
        fleet = settled()
        fleet.serves_changed(fleet.members["a:1"], {**ALL, "m7": {"1": "", "2": ""}})
        assert [served.name for served in fleet.rebuilds.outdated] == ["m7"]
        assert set(fleet.model("m7").replica_set("2").replicas) == {"a:1"}
        assert not fleet.rebuilds.outdated

    def test_a_commit_outdates_the_models_that_it_changes(self) -> None:
        fleet = settled()
        fleet.lead()
        committed = {name: Commitment(1, "1", {"1": ""}) for name in NAMES}
        for epoch in (1, 2):
            fleet.commit(epoch, committed)
            for _ in fleet.rebuilds.steps():
                pass
        fleet.commit(3, {**committed, "m7": Commitment(3, "2", {"2": ""})})
        assert [served.name for served in fleet.rebuilds.outdated] == ["m7"]
        assert fleet.model("m7").current.version == "2"
        # What is served of the others is of this epoch all the same.
        assert arrive(fleet, "m8", SECOND).epoch == 3

    def test_mismatches_are_looked_for_once_per_index_and_commit(self) -> None:
        looks: list[str] = []

        class Index(dict[str, dict[str, str]]):
            def get(self, model: str, default: Any = None) -> Any:
                looks.append(model)
                return super().get(model, default)

        mismatches, serves = Mismatches(), Index(ALL)
        committed = {name: Commitment(1, "1", {"1": ""}) for name in NAMES}
        for _ in range(3):
            assert mismatches.of(serves, committed) == ""
        assert len(looks) == len(NAMES)
        changed = {**committed, "m7": Commitment(2, "1", {"1": "other"})}
        assert "m7 1" in mismatches.of(serves, changed)
        assert looks[len(NAMES) :] == ["m7"]
        assert mismatches.of(serves, committed) == ""


class TestReports:
    def test_a_probe_changes_no_replica_until_one_is_looked_at(self) -> None:
        fleet = settled(20)
        replicas = [fleet.model(name).current.replicas["a:1"] for name in NAMES]
        fleet.reported(fleet.members["a:1"], LoadReport(4, 2), 2 * SECOND)
        assert {replica.reported_at for replica in replicas} == {0}
        assert replicas[7].load(2 * SECOND) == 4
        assert [replica.reported_at for replica in replicas].count(2 * SECOND) == 1

    def test_a_report_that_came_with_an_answer_since_stands(self) -> None:
        fleet = settled(2)
        replica_set = fleet.model("m3").current
        replica = replica_set.replicas["a:1"]
        fleet.reported(fleet.members["a:1"], LoadReport(4, 2), 2 * SECOND)
        replica_set.balancer.reported(replica, LoadReport(7, 0, run_ns=5), 2 * SECOND + 1)
        replica_set.catch_up(2 * SECOND + 2)
        assert (replica.load(2 * SECOND + 2), replica.reported_at) == (7, 2 * SECOND + 1)

    def test_what_is_sent_after_a_report_counts(self) -> None:
        fleet = settled(20)
        replica = fleet.model("m3").current.replicas["a:1"]
        fleet.reported(fleet.members["a:1"], LoadReport(4, 2), 2 * SECOND)
        replica.sent()
        assert replica.load(2 * SECOND) == 5

    def test_a_metrics_page_is_news_of_each_model(self) -> None:
        fleet = settled(20)
        fleet.pending_reported(fleet.members["a:1"], {"m3": 2, "m4": 5}, 2 * SECOND)
        found = [fleet.model(name).current.replicas["a:1"] for name in ("m3", "m4", "m5")]
        assert [replica.load(2 * SECOND) for replica in found] == [7, 7, 7]
        assert [replica.report.queue for replica in found] == [2, 5, 0]

    @pytest.mark.parametrize("seed", range(5))
    def test_looking_at_the_reports_that_count_is_looking_at_all(self, seed: int) -> None:
        """Where a policy names its candidates, requests go where they would go if it was told of every report."""
        looks: list[int] = []

        class Told(Prequal):
            def wants_report(self, replica: Replica) -> bool:
                looks.append(1)
                return super().wants_report(replica)

        class ToldOfAll(Told):
            def report_candidates(self) -> None:
                return None

        found = []
        for policy in (Told, ToldOfAll):
            looks.clear()
            random = Random(seed)
            fleet = Fleet(
                GatewayRules(),
                WireLimits(),
                Outliers(),
                seed=seed,
                clock=lambda: SECOND,
                make_policy=lambda rules, random, policy=policy: policy(random),  # type: ignore[misc]
            )
            upstreams = [Upstream(f"w{number}", 1, 1) for number in range(60)]
            for member in fleet.set_members(upstreams)[0]:
                member.endpoint.healthy, member.endpoint.joined_at, member.serves = True, OLD, {"m": {"1": ""}}
            fleet.rebuild()
            places = []
            for step in range(200):
                now = SECOND + step * 10 * MILLISECOND
                for member in random.sample(list(fleet.members.values()), 20):
                    fleet.reported(member, LoadReport(random.randrange(9), 0), now)
                places.append(place(fleet, "m", now))
            found.append((places, len(looks)))
        assert found[0][0] == found[1][0]
        assert found[0][1] < found[1][1]


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("health"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("drain"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("eject"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("serve"), st.integers(0, 3), st.sets(st.sampled_from("1234"))),
        st.tuples(st.just("unknown"), st.integers(0, 3), st.none()),
        st.tuples(st.just("member"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("use"), st.integers(0, 1), st.none()),
        st.tuples(st.just("pass"), st.integers(1, 60), st.none()),
    ),
    max_size=25,
)


@given(EVENTS)
def test_what_is_taken_piece_by_piece_is_what_a_look_at_everything_finds(events: list[tuple[str, int, Any]]) -> None:
    """After any history, a model that looks again has the eligible replicas of one that is made anew."""
    now = SECOND
    fleet = Fleet(GatewayRules(), WireLimits(), Outliers(), seed=1, clock=lambda: now)
    add_members(fleet, *[{"m": {"1": ""}, "n": {"1": ""}}] * 4)
    upstreams = {member.endpoint.address: member.upstream for member in fleet.members.values()}
    addresses, names = list(upstreams), ("m", "n")
    for name in names:
        fleet.model(name)
    for kind, number, value in events:
        member = fleet.members.get(addresses[number % 4])
        if kind == "use":
            served = fleet.model(names[number])
            served.current.catch_up(now)
        elif kind == "pass":
            now += number * 100 * MILLISECOND
        elif kind == "member":
            kept = [each for address, each in upstreams.items() if address in fleet.members]
            changed = upstreams[addresses[number]]
            new, _ = fleet.set_members([*kept, changed] if value else [each for each in kept if each != changed])
            for each in new:
                each.endpoint.joined_at = OLD
        elif member is None:
            continue
        elif kind == "health":
            member.endpoint.healthy = value
            fleet.health_changed(member)
        elif kind == "drain":
            fleet.reported(member, LoadReport(0, 0, draining=value), now)
        elif kind == "eject":
            member.endpoint.ejected_until = now + value * SECOND
        else:
            fleet.serves_changed(member, None if value is None else {"m": dict.fromkeys(value, ""), "n": {"1": ""}})
        fleet.refresh(now)
    for name in names:
        served = fleet.model(name)
        replica_set = served.current
        replica_set.catch_up(now)
        found = [replica.endpoint.address for replica in replica_set.balancer.eligible], replica_set.balancer.panicking
        served.rebuild(now)
        again = served.current
        assert again is replica_set
        expected = [replica.endpoint.address for replica in again.balancer.eligible], again.balancer.panicking
        assert found == expected
        assert all(replica.endpoint is fleet.members[address].endpoint for address, replica in again.replicas.items())


COMMITTED = {name: [Commitment(number, str(number), {str(number): ""}) for number in range(3)] for name in "abcd"}
EPOCHS = st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)), min_size=1, max_size=8)


@given(EPOCHS, st.data())
def test_a_prepared_commit_is_a_commit(epochs: list[dict[str, int]], data: st.DataObject) -> None:
    """Prepared just before, prepared too early, or not at all: the same is served afterwards."""
    prepared_fleet, plain_fleet = make_fleet(), make_fleet()
    for fleet in (prepared_fleet, plain_fleet):
        add_members(fleet, {name: {"1": "", "2": ""} for name in "abcd"})
        fleet.lead()
    commits = [{name: COMMITTED[name][version] for name, version in versions.items()} for versions in epochs]
    early: prepared_epoch.PreparedEpoch | None = None
    for number, committed in enumerate(commits, 1):
        if early is None or data.draw(st.booleans()):
            prepared = finished(prepared_fleet.prepare(committed))
        else:
            prepared = early
        if number < len(commits):
            early = finished(prepared_fleet.prepare(commits[number]))
        prepared_fleet.commit(number, committed, prepared)
        plain_fleet.commit(number, committed)
        if data.draw(st.booleans()):
            for fleet in (prepared_fleet, plain_fleet):
                for _ in fleet.rebuilds.steps():
                    pass
        found = [
            (
                {name: (served.commitment, served.outdated) for name, served in fleet.models.items()},
                set(fleet.rebuilds.unmade),
            )
            for fleet in (prepared_fleet, plain_fleet)
        ]
        assert found[0] == found[1]
        for name, served in prepared_fleet.models.items():
            assert served.commitment is committed.get(name)


def test_preparing_compares_a_bounded_number_per_step() -> None:
    fleet = settled()
    fleet.lead()
    committed = {f"n{number}": Commitment(1, "1", {"1": ""}) for number in range(3000)}
    fleet.commit(1, committed)
    steps = sum(1 for _ in fleet.prepare(dict(committed)))
    assert steps >= 2 * 3000 // prepared_epoch._COMPARED_PER_STEP
    assert finished(fleet.prepare(dict(committed))).changed == {}
