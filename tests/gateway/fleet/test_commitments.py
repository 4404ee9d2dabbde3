"""A gateway that is led: it serves what is committed and nothing else, and holds what it is told to hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from offline import add_members, make_fleet

from isochrone.control.agents.commitments import commitments
from isochrone.control.state.records import Assignment, EpochRecord, Split
from isochrone.errors import InvalidArgument, NotFound, Unavailable
from isochrone.gateway.fleet.commitment import ANY_EPOCH, Commitment
from isochrone.gateway.housekeeping import finished
from isochrone.gateway.traffic.canary import CanaryRules
from isochrone.protocol.headers.stages import stages_value

BOTH = {"m": {"1": "one", "2": "two"}}
ONE = {"m": {"1": "one"}}


class Request:
    """A head: all that choosing looks at."""

    def __init__(self, **headers: str) -> None:
        self.headers = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}

    def get(self, name: bytes) -> bytes | None:
        return self.headers.get(name)


def committed(version: str, epoch: int = 1, **fields: Any) -> dict[str, Commitment]:
    digests = {"1": "one", "2": "two"}
    return {"m": Commitment(epoch, version, **{"digests": digests, **fields})}


class TestVersions:
    def test_nothing_is_served_before_something_is_committed(self) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH)
        fleet.lead()
        served = fleet.model("m")
        assert not served.plain
        with pytest.raises(Unavailable, match="does not know yet"):
            served.choose(Request())

    def test_the_committed_version_is_served_though_a_newer_one_is_there(self) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH, BOTH)
        fleet.lead()
        fleet.commit(1, committed("1"))
        served = fleet.model("m")
        assert served.plain
        assert served.current.version == "1"
        assert len(served.current.balancer.eligible) == 2

    def test_a_worker_with_another_digest_gets_nothing(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE, {"m": {"1": "0ther"}})
        fleet.lead()
        fleet.commit(1, committed("1"))
        replica_set = fleet.model("m").current
        assert [replica.endpoint.address for replica in replica_set.balancer.eligible] == ["a:1"]
        assert "is not the committed" in replica_set.balancer.refusal(replica_set.replicas["b:1"])

    def test_a_worker_without_the_version_gets_nothing(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE, {"m": {"2": "two"}})
        fleet.lead()
        fleet.commit(1, committed("2"))
        assert list(fleet.model("m").current.replicas) == ["b:1"]

    def test_a_version_that_is_only_prepared_cannot_be_asked_for(self) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH)
        fleet.lead()
        fleet.commit(1, committed("1", digests={"1": "one"}))
        with pytest.raises(NotFound, match="version 2 is not found: committed are 1"):
            fleet.model("m").replica_set("2")

    def test_the_previous_one_can(self) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH)
        fleet.lead()
        fleet.commit(2, committed("2"))
        assert fleet.model("m").replica_set("1").version == "1"

    def test_a_model_nobody_committed_is_unknown(self) -> None:
        fleet = make_fleet()
        add_members(fleet, {**BOTH, "n": {"1": "x"}})
        fleet.lead()
        fleet.commit(1, committed("1"))
        with pytest.raises(NotFound, match="unknown model"):
            fleet.model("n").choose(Request())

    def test_a_model_that_is_no_longer_committed_is_gone(self) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH)
        fleet.lead()
        fleet.commit(1, committed("1"))
        served = fleet.model("m")
        fleet.commit(2, {})
        assert not served.plain
        with pytest.raises(NotFound, match="unknown model"):
            served.choose(Request())

    def test_replicas_keep_what_is_known_of_them_over_an_epoch(self) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH)
        fleet.lead()
        fleet.commit(1, committed("1"))
        replica = fleet.model("m").current.replicas["a:1"]
        fleet.commit(2, committed("1", 2))
        assert fleet.model("m").current.replicas["a:1"] is replica

    def test_replica_sets_of_epochs_that_are_gone_go(self) -> None:
        fleet = make_fleet()
        add_members(fleet, {"m": {"1": "one", "2": "two", "3": "three"}})
        fleet.lead()
        for epoch, version in ((1, "1"), (2, "2"), (3, "3"), (4, "3")):
            fleet.commit(epoch, committed(version, epoch, digests={version: ""}))
        assert {version for version, _ in fleet.model("m").replica_sets if version} == {"3"}


class TestCanary:
    def test_a_split_by_agent_that_stays(self) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH)
        fleet.lead()
        fleet.commit(1, committed("1", canary=CanaryRules("2", "1", 0.5)))
        served = fleet.model("m")
        assert not served.plain
        versions = {}
        for number in range(200):
            request = Request(x_agent_id=f"agent-{number}")
            versions[number] = served.choose(request).version
            assert served.choose(request).version == versions[number]
        assert 60 < sum(version == "2" for version in versions.values()) < 140

    def test_what_is_counted_begins_with_the_canary_and_ends_with_it(self) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH)
        fleet.lead()
        fleet.commit(1, committed("1", canary=CanaryRules("2", "1", 0.1)))
        served = fleet.model("m")
        assert served.evaluation is not None
        counts = served.evaluation
        fleet.commit(2, committed("1", 2, canary=CanaryRules("2", "1", 0.5)))
        assert served.evaluation is counts
        fleet.commit(3, committed("2", 3))
        assert served.evaluation is None
        assert served.current is served.plain


class TestEpochAfterEpoch:
    def test_what_an_epoch_does_not_change_stays_the_same_object(self) -> None:
        first = EpochRecord(
            1, {"m": Assignment("1", "a"), "n": Assignment("1", "b"), "e": Assignment("1", stages=("n",))}
        )
        before = finished(commitments(first))
        second = EpochRecord(2, {**first.models, "m": Assignment("2", "c", "1", "a", epoch=2)})
        after = finished(commitments(second, (first, before)))
        assert after == {**before, "m": finished(commitments(second))["m"]}
        assert [name for name in after if after[name] is before[name]] == ["n", "e"]
        # A stage's version is part of its ensemble.
        third = EpochRecord(3, {**second.models, "n": Assignment("2", "d", epoch=3)})
        last = finished(commitments(third, (second, after)))
        assert last["m"] is after["m"]
        assert last["e"].stages == {"1": b"n=2"}


class TestStages:
    def test_they_go_with_the_ensembles_version(self) -> None:
        record = EpochRecord(
            7,
            {
                "chain": Assignment("1", stages=("first", "second")),
                "first": Assignment("2", previous="1"),
                "second": Assignment("5"),
            },
        )
        found = finished(commitments(record))
        assert found["chain"].stages == {"1": b"first=2,second=5"}
        assert found["first"].stages == {}
        assert found["first"].digests == {"2": "", "1": ""}

    def test_a_canary_runs_what_is_tried_with_it(self) -> None:
        record = EpochRecord(
            7,
            {
                "chain": Assignment("1", stages=("first",), canary=Split("2", weight=0.1)),
                "first": Assignment("1", canary=Split("2", weight=0.1)),
            },
        )
        assert finished(commitments(record))["chain"].stages == {"1": b"first=1", "2": b"first=2"}

    def test_the_previous_version_runs_what_it_ran(self) -> None:
        record = EpochRecord(
            7,
            {
                "chain": Assignment("2", previous="1", stages=("first", "second"), epoch=7),
                "first": Assignment("2", previous="1", epoch=7),
                "second": Assignment("5", previous="4", epoch=3),
            },
        )
        assert finished(commitments(record))["chain"].stages == {"2": b"first=2,second=5", "1": b"first=1,second=5"}

    def test_stages_of_stages_are_named_too(self) -> None:
        record = EpochRecord(
            7,
            {
                "outer": Assignment("1", stages=("inner",)),
                "inner": Assignment("3", stages=("leaf", "other")),
                "leaf": Assignment("2", previous="1"),
                "other": Assignment("4"),
            },
        )
        found = finished(commitments(record))
        assert found["outer"].stages == {"1": b"inner=3,leaf=2,other=4"}
        assert found["inner"].stages == {"3": b"leaf=2,other=4"}

    def test_each_stage_of_a_stage_goes_by_the_outermost_ensembles_version(self) -> None:
        record = EpochRecord(
            7,
            {
                "outer": Assignment("2", previous="1", stages=("inner",), epoch=7, canary=Split("3", weight=0.1)),
                "inner": Assignment("5", previous="4", stages=("leaf", "other"), epoch=3),
                "leaf": Assignment("2", previous="1", epoch=7),
                "other": Assignment("8", canary=Split("9", weight=0.1)),
            },
        )
        assert finished(commitments(record))["outer"].stages == {
            "2": b"inner=5,leaf=2,other=8",
            "1": b"inner=5,leaf=1,other=8",
            "3": b"inner=5,leaf=2,other=9",
        }

    def test_a_circle_ends(self) -> None:
        record = EpochRecord(
            7,
            {
                "one": Assignment("1", stages=("two",)),
                "two": Assignment("2", stages=("one", "two", "three")),
                "three": Assignment("3"),
            },
        )
        found = finished(commitments(record))
        assert found["one"].stages == {"1": b"three=3,two=2"}
        assert found["two"].stages == {"2": b"one=1,three=3"}

    def test_an_ensemble_runs_where_all_its_stages_are(self) -> None:
        fleet = make_fleet()
        complete = {"m": {"1": ""}, "s": {"2": "two"}}
        older = {"m": {"1": ""}, "s": {"1": "one"}}
        other = {"m": {"1": ""}, "s": {"2": "0ther"}}
        add_members(fleet, complete, older, other)
        fleet.lead()
        chain = Commitment(1, "1", {"1": ""}, stages={"1": stages_value({"s": "2"})})
        fleet.commit(1, {"m": chain, "s": Commitment(1, "2", {"2": "two"})})
        assert list(fleet.model("m").current.replicas) == ["a:1"]

    def test_another_stage_is_another_replica_set(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE)
        fleet.lead()
        fleet.commit(1, committed("1", stages={"1": stages_value({"s": "1"})}))
        before = fleet.model("m").current
        assert before.stages == b"s=1"
        assert b"x-isochrone-stages" in before.stage_field
        fleet.commit(2, committed("1", 2, stages={"1": stages_value({"s": "2"})}))
        after = fleet.model("m").current
        assert after is not before
        assert after.stages == b"s=2"


class TestEpochs:
    def test_an_epoch_that_was_seen_can_be_asked_for(self) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH)
        fleet.lead()
        fleet.commit(4, committed("1", 4))
        fleet.commit(5, committed("2", 5))
        served = fleet.model("m")
        assert served.choose(Request(), b"4").version == "1"
        assert served.choose(Request(), b"5").version == "2"
        assert served.choose(Request(), ANY_EPOCH).version == "2"

    @pytest.mark.parametrize(
        ("asked", "kind", "text"),
        [
            (b"3", NotFound, "epoch 3 is not served any more; this gateway serves 4 and 5"),
            (b"6", Unavailable, "epoch 6 has not reached this gateway yet"),
            (b"-1", InvalidArgument, "expected a number"),
            (b"x" * 100, InvalidArgument, "expected a number"),
        ],
    )
    def test_any_other_is_told(self, asked: bytes, kind: type[Exception], text: str) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH)
        fleet.lead()
        fleet.commit(4, committed("1", 4))
        fleet.commit(5, committed("2", 5))
        with pytest.raises(kind, match=text):
            fleet.model("m").choose(Request(), asked)


class TestHolding:
    def test_a_model_first_asked_for_during_a_hold_is_held_too(self) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH)
        fleet.lead()
        fleet.commit(1, committed("1"))
        fleet.hold(["m"])
        assert fleet.model("m").is_held

    def test_other_models_go_on(self) -> None:
        fleet = make_fleet()
        add_members(fleet, {**BOTH, "n": {"1": ""}})
        fleet.lead()
        fleet.commit(1, {**committed("1"), "n": Commitment(1, "1", {"1": ""})})
        fleet.hold(["m"])
        assert fleet.model("n").plain


class TestRules:
    def test_a_change_reaches_the_models_that_are_there(self) -> None:
        from isochrone.gateway.rules.file import parse_rules

        fleet = make_fleet()
        add_members(fleet, BOTH)
        fleet.lead()
        fleet.commit(1, committed("1"))
        served = fleet.model("m")
        fleet.configure(parse_rules('{"models": {"m": {"policy": "round_robin", "deadline_ms": 5}}}', "r.json"))
        assert fleet.model("m") is served
        assert served.deadline_ns == 5_000_000
        assert served.current.balancer.policy.name == "round_robin"
        assert served.current.version == "1"

    def test_outlier_rules_of_a_fleet_yaml_reach_a_gateway_that_runs(self) -> None:
        from isochrone.control.fleet.derived.gateway_rules import SOURCE, gateway_rules
        from isochrone.control.fleet.reading.parsing import parse_fleet
        from isochrone.gateway.resilience.outliers import Outliers
        from isochrone.gateway.rules.file import parse_rules

        outliers = Outliers()
        fleet = make_fleet(outliers=outliers)
        text = "name: a\ntraffic: {outliers: {consecutive_failures: 2}}"
        fleet.configure(parse_rules(gateway_rules(parse_fleet(text, "fleet.yaml", Path("/"))), SOURCE))
        assert outliers.rules.consecutive_failures == 2
