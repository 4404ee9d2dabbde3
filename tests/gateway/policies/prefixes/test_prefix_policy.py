"""prefix: the longest common beginning decides, load limits it, and what was not used for longest is forgotten."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_queues import fleet

from isochrone.errors import ConfigError
from isochrone.gateway import policies
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.policies.prefix.index import PrefixIndex, chain_of
from isochrone.gateway.policies.prefix.policy import Prefix
from isochrone.gateway.replicas import Replica

SYSTEM = b"You are a helpful assistant. " * 20
TASKS = [SYSTEM + task * 40 for task in (b"Translate this text. ", b"Summarise this page. ", b"Write a poem of it. ")]


class TestChains:
    def test_equal_beginnings_have_equal_hashes(self) -> None:
        one, other = chain_of(TASKS[0], 256, 64), chain_of(TASKS[1], 256, 64)
        assert len(one) == len(TASKS[0]) // 256
        assert one[:2] == other[:2]
        assert not set(one[2:]) & set(other[2:])

    def test_a_short_prompt_is_one_piece(self) -> None:
        assert len(chain_of(b"hello", 256, 64)) == 1
        assert chain_of(b"", 256, 64) == []

    def test_the_number_of_pieces_is_limited(self) -> None:
        assert len(chain_of(b"x" * 10_000, 100, 7)) == 7

    @given(st.binary(max_size=60), st.binary(max_size=30), st.binary(max_size=30))
    def test_as_many_hashes_are_equal_as_whole_pieces(self, common: bytes, one: bytes, other: bytes) -> None:
        first, second = chain_of(common + one, 4, 100), chain_of(common + other, 4, 100)
        pieces = list(zip(_pieces(common + one), _pieces(common + other), strict=False))
        equal = next((count for count, (a, b) in enumerate(pieces) if a != b), len(pieces))
        if min(len(common + one), len(common + other)) >= 4:
            assert [a == b for a, b in zip(first, second, strict=False)][:equal] == [True] * equal
            assert not set(first[equal:]) & set(second[equal:])


def _pieces(text: bytes) -> list[bytes]:
    return [text[start : start + 4] for start in range(0, len(text) - 3, 4)]


class TestIndex:
    def test_the_last_worker_comes_first(self) -> None:
        index = PrefixIndex(10)
        for address in ("a", "b", "a"):
            index.add([b"1", b"2"], address)
        assert index.holders(b"2") == ("a", "b")
        assert index.holders(b"3") == ()

    def test_what_was_not_used_for_longest_is_forgotten(self) -> None:
        index = PrefixIndex(4)
        index.add([b"1", b"2"], "a")
        index.add([b"3", b"4"], "a")
        index.add([b"1", b"5"], "a")
        assert len(index) == 4
        assert [piece for piece in (b"1", b"2", b"3", b"4", b"5") if index.holders(piece)] == [b"1", b"3", b"4", b"5"]

    def test_a_beginning_outlives_what_continues_it(self) -> None:
        index = PrefixIndex(2)
        index.add([b"1", b"2", b"3"], "a")
        assert [bool(index.holders(piece)) for piece in (b"1", b"2", b"3")] == [True, True, False]

    def test_few_workers_are_kept(self) -> None:
        index = PrefixIndex(4)
        for number in range(100):
            index.add([b"1"], str(number))
        assert index.holders(b"1") == tuple(str(number) for number in range(99, 91, -1))


def made(size: int, **options: object) -> tuple[Prefix, list[Replica]]:
    policy = policies.make("prefix", Random(1), **options)
    assert isinstance(policy, Prefix)
    replicas = fleet(size)
    policy.replicas_changed(replicas)
    return policy, replicas


def send(policy: Prefix, prompt: bytes, avoid: tuple[Replica, ...] = ()) -> Replica:
    replica = policy.choose(Demand(prompt=prompt, avoid=avoid), 1)
    replica.sent()
    policy.sent(replica, 1)
    return replica


class TestChoices:
    def test_prompts_that_begin_alike_stay_together(self) -> None:
        policy, _ = made(8, slack=100)
        homes = [send(policy, task) for task in TASKS]
        for number in range(30):
            task = number % 3
            assert send(policy, TASKS[task] + b"text %d" % number * 20) is homes[task]
        assert policy.counts()["prefix_matched"] >= 30

    def test_the_longest_beginning_decides(self) -> None:
        policy, replicas = made(2, slack=100)
        first = send(policy, SYSTEM)
        # Only the other is left for the longer prompt, which it has from then on.
        other = send(policy, TASKS[0], avoid=(first,))
        assert {first, other} == set(replicas)
        assert send(policy, TASKS[0] + b"more") is other
        assert send(policy, SYSTEM + b"x" * 600) in (first, other)

    def test_different_prompts_spread_by_load(self) -> None:
        policy, replicas = made(4)
        for number in range(40):
            send(policy, b"prompt %d " % number * 50)
        assert {replica.in_flight for replica in replicas} == {10}

    def test_an_overloaded_worker_is_left_alone(self) -> None:
        policy, replicas = made(4, load_factor=1, slack=3)
        for _ in range(40):
            send(policy, SYSTEM)
        loads = sorted(replica.in_flight for replica in replicas)
        assert sum(loads) == 40
        assert loads[-1] - loads[0] <= 4
        assert policy.counts()["prefix_overloaded"] > 0

    def test_a_second_worker_that_has_it_helps_before_a_third(self) -> None:
        policy, replicas = made(6, load_factor=1, slack=4)
        for _ in range(7):
            send(policy, SYSTEM)
        assert sorted(replica.in_flight for replica in replicas) == [0, 0, 0, 0, 2, 5]

    def test_no_prompt_goes_by_load(self) -> None:
        policy, replicas = made(3)
        for _ in range(9):
            send(policy, b"")
        assert {replica.in_flight for replica in replicas} == {3}
        assert set(policy.counts().values()) == {0}

    def test_a_worker_that_left_is_not_chosen(self) -> None:
        policy, replicas = made(3, slack=100)
        home = send(policy, SYSTEM)
        left = [replica for replica in replicas if replica is not home]
        policy.replicas_changed(left)
        assert send(policy, SYSTEM) in left
        policy.replicas_changed(replicas)
        assert send(policy, SYSTEM) in replicas


@pytest.mark.parametrize(
    "options",
    [{"piece_bytes": 1}, {"most_pieces": 0}, {"entries": 0}, {"load_factor": 0.5}, {"slack": -1}, {"slack": 1.5}],
)
def test_wrong_options_are_rejected(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"policy prefix: {next(iter(options))}"):
        made(1, **options)
