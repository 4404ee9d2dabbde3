"""Which version a request without one gets, and replica sets of the others."""

from __future__ import annotations

from offline import add_members, make_fleet

ONE, BOTH = {"m": {"1": "x"}}, {"m": {"1": "x", "2": "y"}}


class TestVersions:
    def test_the_newest_that_all_have(self) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH, BOTH, ONE)
        served = fleet.model("m")
        assert served.current.version == "1"
        assert set(served.current.replicas) == {"a:1", "b:1", "c:1"}
        assert set(served.replica_set("2").replicas) == {"a:1", "b:1"}

    def test_numbers_not_words(self) -> None:
        fleet = make_fleet()
        add_members(fleet, {"m": {"9": "", "10": ""}})
        assert fleet.model("m").current.version == "10"

    def test_a_switch_moves_all_at_once(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE, ONE)
        served = fleet.model("m")
        before = served.current
        fleet.members["a:1"].serves = BOTH
        fleet.rebuild()
        assert served.current is before
        fleet.members["b:1"].serves = BOTH
        fleet.rebuild()
        assert served.current.version == "2"

    def test_the_unhealthy_have_no_vote(self) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH, ONE, ONE)
        for address in ("b:1", "c:1"):
            fleet.members[address].endpoint.healthy = False
        fleet.rebuild()
        assert fleet.model("m").current.version == "2"

    def test_nobody_left_keeps_the_last_word(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE)
        served = fleet.model("m")
        fleet.members["a:1"].endpoint.healthy = False
        fleet.rebuild()
        assert served.current.version == "1"

    def test_what_is_known_of_a_replica_outlives_a_rebuild(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE, ONE)
        replica_set = fleet.model("m").current
        replica = replica_set.replicas["a:1"]
        fleet.rebuild()
        assert replica_set.replicas["a:1"] is replica
        assert replica.digest == "x"

    def test_guessed_versions_are_bounded_and_keep_their_name(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE)
        served = fleet.model("m")
        replica_sets = [served.replica_set(str(number)) for number in range(2, 500)]
        assert [replica_set.version for replica_set in replica_sets] == [str(number) for number in range(2, 500)]
        assert len(served.replica_sets) < 100
        fleet.rebuild()
        assert served.current.version == "1"
        assert {version for version, _ in served.replica_sets} <= {"", "1"}
