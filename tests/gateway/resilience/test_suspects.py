"""Requests that may have killed their worker: sent once more, alone; cleared by an answer, or condemned by a death."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.clock import NEVER
from isochrone.gateway.resilience.retrials import Placed, Retrials
from isochrone.gateway.resilience.suspects import Key, QuarantineRules, Standing, Suspects

SECOND = 1_000_000_000
RULES = QuarantineRules(duration_ns=300 * SECOND, suspicion_ns=60 * SECOND)


def key(name: str, model: str = "m") -> Key:
    return Key(model, "1", name.encode())


def lose(suspects: Suspects, *requests: tuple[Key, bool], now: int = 0) -> frozenset[Key]:
    return suspects.lost(requests, now, lambda model: RULES)


def test_one_lost_process_makes_suspects_and_no_more() -> None:
    suspects = Suspects()
    assert lose(suspects, *((key(str(number)), False) for number in range(30))) == frozenset()
    assert {suspects.standing(key(str(number)), 1) for number in range(30)} == {Standing.SUSPECT}
    assert suspects.standing(key("other"), 1) is Standing.CLEAR
    assert suspects.watches("m")
    assert not suspects.watches("n")


def test_the_second_quarantines_for_a_while() -> None:
    suspects = Suspects()
    lose(suspects, (key("k"), False), (key("a"), False))
    assert lose(suspects, (key("k"), True), (key("b"), False), now=SECOND) == {key("k")}
    assert suspects.standing(key("k"), 300 * SECOND) is Standing.QUARANTINED
    assert suspects.quarantined("m", 2 * SECOND) == 1
    assert suspects.standing(key("b"), 2 * SECOND) is Standing.SUSPECT
    # Then it is a suspect again: one more process is enough.
    assert suspects.standing(key("k"), 302 * SECOND) is Standing.SUSPECT
    assert lose(suspects, (key("k"), True), now=302 * SECOND) == {key("k")}


def test_an_answer_clears() -> None:
    suspects = Suspects()
    lose(suspects, (key("a"), False))
    assert suspects.cleared(key("a"))
    assert not suspects.cleared(key("a"))
    assert suspects.standing(key("a"), 1) is Standing.CLEAR
    assert not suspects.watches("m")


def test_of_two_suspects_on_one_process_neither_is_condemned() -> None:
    suspects = Suspects()
    lose(suspects, (key("a"), False), (key("b"), False))
    assert lose(suspects, (key("a"), True), (key("b"), True)) == frozenset()
    assert lose(suspects, (key("b"), True)) == {key("b")}


def test_copies_that_were_sent_before_the_suspicion_do_not_count() -> None:
    suspects = Suspects()
    lose(suspects, (key("k"), False), (key("same"), False))
    # "same" is in flight everywhere, as in a fleet whose agents all send one request; k is on trial.
    assert lose(suspects, (key("k"), True), (key("same"), False)) == {key("k")}


def test_a_case_ends_by_time() -> None:
    suspects = Suspects()
    lose(suspects, (key("a"), False))
    suspects.sweep(59 * SECOND)
    assert suspects.models == {"m"}
    suspects.sweep(60 * SECOND)
    assert suspects.models == frozenset()


def test_the_table_is_bounded_and_keeps_the_quarantined_longest() -> None:
    suspects = Suspects(most=10)
    lose(suspects, (key("k"), False))
    lose(suspects, (key("k"), True))
    for number in range(50):
        lose(suspects, (key(str(number)), False))
    assert suspects.standing(key("k"), 1) is Standing.QUARANTINED
    kept = [number for number in range(50) if suspects.standing(key(str(number)), 1) is Standing.SUSPECT]
    assert kept == list(range(41, 50))
    for number in range(50):
        lose(suspects, (key(str(number)), True))
    assert suspects.quarantined("m", 1) == 10


def test_those_that_lose_a_second_process_together_go_alone_from_then_on() -> None:
    suspects = Suspects()
    lose(suspects, (key("a"), False), (key("b"), False))
    assert not suspects.goes_alone(key("a"))
    assert lose(suspects, (key("a"), True), (key("b"), True), (key("new"), False)) == frozenset()
    assert [suspects.goes_alone(key(name)) for name in ("a", "b", "new")] == [True, True, False]
    assert suspects.cleared(key("a"))
    assert not suspects.goes_alone(key("a"))


def test_one_whose_quarantine_is_over_goes_alone() -> None:
    suspects = Suspects()
    lose(suspects, (key("k"), False))
    lose(suspects, (key("k"), True))
    assert suspects.standing(key("k"), 301 * SECOND) is Standing.SUSPECT
    assert suspects.goes_alone(key("k"))


class _Places:
    """Two endpoints; a suspect goes to the one that has fewer."""

    def __init__(self) -> None:
        self.sent: dict[str, list[int]] = {"w1": [], "w2": []}

    def __call__(self, request: int, occupied: Collection[str]) -> str | Placed:
        free = [address for address in self.sent if address not in occupied]
        if not free:
            return Placed.WAITS
        address = min(free, key=lambda each: len(self.sent[each]))
        self.sent[address].append(request)
        return address


class TestRetrials:
    @pytest.mark.parametrize(("at_once", "rounds"), [(1, 32), (8, 4), (32, 1)])
    def test_as_many_at_once_as_they_allow(self, at_once: int, rounds: int) -> None:
        retrials: Retrials[int] = Retrials()
        for number in range(64):
            retrials.add(number, key(str(number)), at_once=at_once)
        for _ in range(rounds):
            places = _Places()
            retrials.pump(places)
            assert [len(each) for each in places.sent.values()] == [at_once, at_once]
            for each in places.sent.values():
                for request in each:
                    retrials.over(request)
        assert retrials.waiting == 0

    def test_a_suspect_that_goes_alone_shares_its_endpoint_with_no_other(self) -> None:
        retrials: Retrials[int] = Retrials()
        retrials.add(0, key("alone"))
        for number in range(1, 5):
            retrials.add(number, key(str(number)), at_once=3)
        retrials.add(5, key("also alone"))
        places = _Places()
        retrials.pump(places)
        assert places.sent == {"w1": [0], "w2": [1, 2, 3]}
        retrials.over(0)
        retrials.pump(places)
        # The first that waits takes it; the one that goes alone waits until it is empty.
        assert places.sent["w1"][1:] == [4]
        retrials.over(4)
        retrials.pump(places)
        assert places.sent["w1"][2:] == [5]

    def test_the_nearest_deadline_goes_first(self) -> None:
        retrials: Retrials[int] = Retrials()
        for number, deadline in enumerate((NEVER, 300, 100, 200)):
            retrials.add(number, key(str(number)), deadline)
        places = _Places()
        retrials.pump(places)
        assert places.sent == {"w1": [2], "w2": [3]}

    def test_one_suspect_at_a_time_on_an_endpoint(self) -> None:
        retrials: Retrials[str] = Retrials()
        for name in "abc":
            retrials.add(name, key(name))
        sent: list[tuple[str, str]] = []

        def place(request: str, occupied: Collection[str]) -> str | Placed:
            free = [address for address in ("w1", "w2") if address not in occupied]
            if not free:
                return Placed.WAITS
            sent.append((request, free[0]))
            return free[0]

        retrials.pump(place)
        assert sent == [("a", "w1"), ("b", "w2")]
        retrials.pump(place)
        assert len(sent) == 2
        retrials.over("b")
        retrials.pump(place)
        assert sent[2:] == [("c", "w2")]
        for name in "abc":
            retrials.over(name)
        assert retrials.waiting == 0

    def test_one_of_identical_ones_speaks_for_all(self) -> None:
        retrials: Retrials[int] = Retrials()
        for number in range(5):
            retrials.add(number, key("same"))
        retrials.pump(lambda request, occupied: "w1")
        assert retrials.waiting == 4
        retrials.pump(lambda request, occupied: "w2")
        assert retrials.waiting == 4
        assert retrials.take(key("same")) == [1, 2, 3, 4]
        assert retrials.waiting == 0

    def test_a_hedge_occupies_its_endpoint(self) -> None:
        retrials: Retrials[str] = Retrials()
        retrials.mark("hedged", key("h"), "w2")
        retrials.add("a", key("a"))
        seen: list[list[str]] = []

        def place(request: str, occupied: Collection[str]) -> str | Placed:
            seen.append(sorted(occupied))
            return Placed.ENDED

        retrials.pump(place)
        assert seen == [["w2"]]
        assert retrials.waiting == 0


class _Fleet:
    """Workers that die of some requests, and a gateway in front that goes by ``Suspects`` and ``Retrials``."""

    def __init__(self, random: Random, workers: int, killers: Collection[Key], at_once: int = 1) -> None:
        self.random = random
        self.killers = killers
        self.at_once = at_once
        self.suspects = Suspects()
        self.retrials: Retrials[int] = Retrials()
        self.alive = {f"w{number}" for number in range(workers)}
        self.down: list[str] = []
        self.keys: dict[int, Key] = {}
        #: Request → where it is; whether it was sent as a suspect.
        self.on: dict[int, str] = {}
        self.suspected: set[int] = set()
        self.tried: dict[int, set[str]] = {}
        self.answers: dict[int, str] = {}
        self.deaths = 0

    def arrive(self, request: int, own: Key) -> None:
        self.keys[request] = own
        self.tried[request] = set()
        standing = self.suspects.standing(own, 0)
        if standing is Standing.QUARANTINED:
            self.answers[request] = "quarantined"
        elif standing is Standing.SUSPECT:
            self.suspected.add(request)
            self._wait(request)
            self.retrials.pump(self._place)
        else:
            self._send(request, self.random.choice(sorted(self.alive)))

    def _wait(self, request: int) -> None:
        own = self.keys[request]
        self.retrials.add(request, own, at_once=1 if self.suspects.goes_alone(own) else self.at_once)

    def _send(self, request: int, address: str) -> None:
        self.on[request] = address
        self.tried[request].add(address)

    def _place(self, request: int, occupied: Collection[str]) -> str | Placed:
        free = sorted(self.alive - set(occupied))
        if not free:
            return Placed.WAITS
        address = self.random.choice(free)
        self._send(request, address)
        return address

    def step(self) -> None:
        """One request in flight ends: with an answer, or with its process."""
        if not self.on:
            return
        request = self.random.choice(sorted(self.on))
        if self.keys[request] not in self.killers:
            self._answered(request)
            return
        self.deaths += 1
        address = self.on[request]
        self.alive.discard(address)
        self.down.append(address)
        self._lost(address)
        if not self.alive:
            self.alive.add(self.down.pop(0))
        self.retrials.pump(self._place)

    def _answered(self, request: int) -> None:
        del self.on[request]
        self.answers[request] = "answered"
        self.retrials.over(request)
        if self.suspects.cleared(self.keys[request]):
            for other in self.retrials.take(self.keys[request]):
                self.suspected.discard(other)
                self._send(other, self.random.choice(sorted(self.alive)))
        self.retrials.pump(self._place)

    def _lost(self, address: str) -> None:
        lost = [request for request, where in self.on.items() if where == address]
        guilty = lose(self.suspects, *((self.keys[request], request in self.suspected) for request in lost))
        for request in lost:
            del self.on[request]
            self.retrials.over(request)
        for request in lost:
            if self.keys[request] in guilty:
                self.answers[request] = "quarantined"
            else:
                self.suspected.add(request)
                self._wait(request)
        for own in guilty:
            for request in self.retrials.take(own):
                self.answers[request] = "quarantined"

    def restart(self) -> None:
        if self.down:
            self.alive.add(self.down.pop(0))
            self.retrials.pump(self._place)


@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(2, 6),
    requests=st.integers(1, 120),
    alike=st.integers(1, 20),
    killed_at=st.integers(0, 100),
    again=st.booleans(),
    at_once=st.sampled_from((1, 1, 2, 8, 64)),
)
def test_a_killer_costs_two_processes_and_harms_no_other_request(
    seed: int, workers: int, requests: int, alike: int, killed_at: int, again: bool, at_once: int
) -> None:
    """Three where suspects share endpoints."""
    random = Random(seed)
    killer = key("killer")
    fleet = _Fleet(random, workers, {killer}, at_once)
    sent_at = {killed_at % requests}
    killers: set[int] = set()
    for number in range(requests):
        if number in sent_at:
            killers.add(number)
            fleet.arrive(number, killer)
        else:
            # Agents may all send one request, or each its own.
            fleet.arrive(number, key(f"good {random.randrange(alike)}"))
        for _ in range(random.randrange(3)):
            fleet.step()
        if random.random() < 0.1:
            fleet.restart()
        if again and killers and all(each in fleet.answers for each in killers) and random.random() < 0.3:
            sent_at.add(number + 1)  # its caller insists
    for _ in range(100 * requests):
        fleet.step()
        if len(fleet.answers) == requests:
            break
    assert fleet.deaths == 2 or (fleet.deaths == 3 and at_once > 1)
    assert {fleet.answers[number] for number in killers} == {"quarantined"}
    assert {fleet.answers[number] for number in range(requests) if number not in killers} <= {"answered"}
    assert len(fleet.answers) == requests
    assert fleet.retrials.waiting == 0
    assert fleet.suspects.standing(killer, 0) is Standing.QUARANTINED


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(2, 6),
    requests=st.integers(1, 120),
    killers=st.integers(1, 4),
    at_once=st.sampled_from((1, 8)),
)
def test_several_killers_at_once_cost_no_more_each(
    seed: int, workers: int, requests: int, killers: int, at_once: int
) -> None:
    random = Random(seed)
    fleet = _Fleet(random, workers, {key(f"killer {number}") for number in range(killers)}, at_once)
    for number in range(requests):
        name = f"killer {random.randrange(killers)}" if random.random() < 0.1 else f"good {number}"
        fleet.arrive(number, key(name))
        for _ in range(random.randrange(3)):
            fleet.step()
        if random.random() < 0.1:
            fleet.restart()
    for _ in range(100 * requests):
        fleet.step()
        if len(fleet.answers) == requests:
            break
    assert len(fleet.answers) == requests
    assert fleet.deaths <= (2 if at_once == 1 else 3) * killers


@pytest.mark.parametrize("disabled", [0, 1])
def test_rules_are_each_models_own(disabled: int) -> None:
    suspects = Suspects()
    short = QuarantineRules(duration_ns=SECOND, suspicion_ns=0)
    names = ("short", "long")

    def rules(model: str) -> QuarantineRules:
        return short if model == names[disabled] else RULES

    for _ in range(2):
        for name in names:
            suspects.lost([(key("k", name), suspects.watches(name))], 0, rules)
    assert [suspects.standing(key("k", name), 2 * SECOND) is Standing.CLEAR for name in names] == [
        name == names[disabled] for name in names
    ]
