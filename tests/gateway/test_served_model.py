"""Which version a request without one gets, replica sets of the others, and sequences that stay at their worker."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from offline import add_members, make_fleet

from isochrone.gateway.sequences import Sequences

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
        assert {version for version, _ in served.replica_sets} <= {"", "1"}


class TestSequences:
    def test_a_home_is_kept_whatever_the_load(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE, ONE, ONE)
        served = fleet.model("m")
        home = served.sequences.home(b"s7", served.current)
        assert home is not None
        for _ in range(50):
            served.current.balancer.sent(home.replica, 0)
        again = served.sequences.home(b"s7", served.current)
        assert again is home
        assert not served.sequences.may_move(b"s7")
        assert served.sequences.may_move(b"s8")

    def test_gateways_agree(self) -> None:
        homes = []
        for order in (1, -1):
            fleet = make_fleet()
            add_members(fleet, ONE, ONE, ONE, ONE)
            served = fleet.model("m")
            fleet.members = dict(list(fleet.members.items())[::order])
            served.current.replicas = {}
            fleet.rebuild()
            keys = [b"s%d" % number for number in range(200)]
            found = [served.sequences.home(key, served.current) for key in keys]
            homes.append([home.replica.endpoint.address for home in found if home is not None])
        assert homes[0] == homes[1]
        assert min(Counter(homes[0]).values()) > 20, "each has about a quarter"

    def test_a_lost_home_is_given_up_and_only_that_one(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE, ONE, ONE)
        served = fleet.model("m")
        before = {key: served.sequences.home(key, served.current) for key in (b"s%d" % n for n in range(60))}
        fleet.members["a:1"].endpoint.healthy = False
        fleet.rebuild()
        for key, home in before.items():
            now = served.sequences.home(key, served.current)
            assert home is not None
            assert now is not None
            if home.replica.endpoint.address == "a:1":
                assert now.replica.endpoint.address != "a:1"
            else:
                assert now is home

    def test_the_version_it_began_with_is_kept(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE)
        served = fleet.model("m")
        home = served.sequences.home(b"s1", served.current)
        fleet.members["a:1"].serves = BOTH
        fleet.rebuild()
        assert served.current.version == "2"
        again = served.sequences.home(b"s1", served.current)
        assert home is not None
        assert again is not None
        assert again.replica_set.version == home.replica_set.version == "1"
        fleet.members["a:1"].serves = {"m": {"2": "y"}}
        fleet.rebuild()
        moved = served.sequences.home(b"s1", served.current)
        assert moved is not None
        assert moved.replica_set.version == "2", "its version is gone, and its state with it"

    def test_nobody(self) -> None:
        fleet = make_fleet()
        assert Sequences().home(b"s1", fleet.unknown.current) is None

    @given(st.lists(st.integers(0, 40), max_size=200))
    def test_every_step_of_a_sequence_meets_one_worker(self, steps: list[int]) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE, ONE)
        served = fleet.model("m")
        seen: dict[int, str] = {}
        for step in steps:
            home = served.sequences.home(b"s%d" % step, served.current)
            assert home is not None
            assert seen.setdefault(step, home.replica.endpoint.address) == home.replica.endpoint.address
        assert len(served.sequences) == len(seen)
