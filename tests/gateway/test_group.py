"""What "the model" means: the version most members have; lanes for the others; and sequences that stay at home."""

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
        group = fleet.group("m")
        assert group.current.version == "1"
        assert set(group.current.replicas) == {"a:1", "b:1", "c:1"}
        assert set(group.lane("2").replicas) == {"a:1", "b:1"}

    def test_numbers_not_words(self) -> None:
        fleet = make_fleet()
        add_members(fleet, {"m": {"9": "", "10": ""}})
        assert fleet.group("m").current.version == "10"

    def test_a_switch_moves_all_at_once(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE, ONE)
        group = fleet.group("m")
        before = group.current
        fleet.members["a:1"].serves = BOTH
        fleet.rebuild()
        assert group.current is before
        fleet.members["b:1"].serves = BOTH
        fleet.rebuild()
        assert group.current.version == "2"

    def test_the_unhealthy_have_no_vote(self) -> None:
        fleet = make_fleet()
        add_members(fleet, BOTH, ONE, ONE)
        for address in ("b:1", "c:1"):
            fleet.members[address].endpoint.healthy = False
        fleet.rebuild()
        assert fleet.group("m").current.version == "2"

    def test_nobody_left_keeps_the_last_word(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE)
        group = fleet.group("m")
        fleet.members["a:1"].endpoint.healthy = False
        fleet.rebuild()
        assert group.current.version == "1"

    def test_what_is_known_of_a_replica_outlives_a_rebuild(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE, ONE)
        lane = fleet.group("m").current
        replica = lane.replicas["a:1"]
        fleet.rebuild()
        assert lane.replicas["a:1"] is replica
        assert replica.digest == "x"

    def test_guessed_versions_are_bounded_and_keep_their_name(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE)
        group = fleet.group("m")
        lanes = [group.lane(str(number)) for number in range(2, 500)]
        assert [lane.version for lane in lanes] == [str(number) for number in range(2, 500)]
        assert len(group.lanes) < 100
        fleet.rebuild()
        assert {version for version, _ in group.lanes} <= {"", "1"}


class TestSequences:
    def test_a_home_is_kept_whatever_the_load(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE, ONE, ONE)
        group = fleet.group("m")
        home = group.sequences.home(b"s7", group.current)
        assert home is not None
        for _ in range(50):
            group.current.balancer.sent(home.replica, 0)
        again = group.sequences.home(b"s7", group.current)
        assert again is home
        assert not group.sequences.may_move(b"s7")
        assert group.sequences.may_move(b"s8")

    def test_gateways_agree(self) -> None:
        homes = []
        for order in (1, -1):
            fleet = make_fleet()
            add_members(fleet, ONE, ONE, ONE, ONE)
            group = fleet.group("m")
            fleet.members = dict(list(fleet.members.items())[::order])
            group.current.replicas = {}
            fleet.rebuild()
            keys = [b"s%d" % number for number in range(200)]
            found = [group.sequences.home(key, group.current) for key in keys]
            homes.append([home.replica.endpoint.address for home in found if home is not None])
        assert homes[0] == homes[1]
        assert min(Counter(homes[0]).values()) > 20, "each has about a quarter"

    def test_a_lost_home_is_given_up_and_only_that_one(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE, ONE, ONE)
        group = fleet.group("m")
        before = {key: group.sequences.home(key, group.current) for key in (b"s%d" % n for n in range(60))}
        fleet.members["a:1"].endpoint.healthy = False
        fleet.rebuild()
        for key, home in before.items():
            now = group.sequences.home(key, group.current)
            assert home is not None
            assert now is not None
            if home.replica.endpoint.address == "a:1":
                assert now.replica.endpoint.address != "a:1"
            else:
                assert now is home

    def test_the_version_it_began_with_is_kept(self) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE)
        group = fleet.group("m")
        home = group.sequences.home(b"s1", group.current)
        fleet.members["a:1"].serves = BOTH
        fleet.rebuild()
        assert group.current.version == "2"
        again = group.sequences.home(b"s1", group.current)
        assert home is not None
        assert again is not None
        assert again.lane.version == home.lane.version == "1"
        fleet.members["a:1"].serves = {"m": {"2": "y"}}
        fleet.rebuild()
        moved = group.sequences.home(b"s1", group.current)
        assert moved is not None
        assert moved.lane.version == "2", "its version is gone, and its state with it"

    def test_nobody(self) -> None:
        fleet = make_fleet()
        assert Sequences().home(b"s1", fleet.unknown.current) is None

    @given(st.lists(st.integers(0, 40), max_size=200))
    def test_every_step_of_a_sequence_meets_one_worker(self, steps: list[int]) -> None:
        fleet = make_fleet()
        add_members(fleet, ONE, ONE)
        group = fleet.group("m")
        seen: dict[int, str] = {}
        for step in steps:
            home = group.sequences.home(b"s%d" % step, group.current)
            assert home is not None
            assert seen.setdefault(step, home.replica.endpoint.address) == home.replica.endpoint.address
        assert len(group.sequences) == len(seen)
