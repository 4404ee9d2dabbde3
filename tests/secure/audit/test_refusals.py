"""The tally of refused requests: every one is counted once, and no number of them makes it large."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from isochrone.secure.audit.actor import Actor, anonymous
from isochrone.secure.audit.records import Entry
from isochrone.secure.audit.refusals import MOST, MOST_OF_STRANGERS, PERIOD_NS, FewPerPeriod, Kind, Refusals

#: 2026-11-18, in ns since 1970.
BEGAN = 1_794_960_000 * 1_000_000_000
SECOND = 1_000_000_000
STRANGER = Kind(anonymous("10.2.3.4"), "inference", "unauthenticated")
ROBOT = Kind(Actor("token:robot", "token", "10.2.3.4"), "model-repository", "permission_denied", "model.load")


def stranger(number: int) -> Kind:
    return Kind(anonymous(f"10.0.{number // 256}.{number % 256}"), "inference", "unauthenticated")


def kind_of(entry: Entry) -> Kind:
    return Kind(entry.actor, entry.object, entry.details["error"], entry.details["change"])


def named(entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if "beyond" not in entry.details]


@given(most=st.integers(0, 5), pauses=st.lists(st.integers(0, 40) | st.just(PERIOD_NS), max_size=30))
def test_a_period_lets_so_many_through_and_no_more(most: int, pauses: list[int]) -> None:
    few, now, let_through = FewPerPeriod(most), 1_000, 0
    for pause in pauses:
        now += pause
        let_through = 0 if pause == PERIOD_NS else let_through
        is_let_through = few.lets_through(now)
        assert is_let_through == (let_through < most)
        let_through += is_let_through


def test_the_first_is_recorded_at_once_and_those_that_follow_when_the_period_ends() -> None:
    refusals = Refusals()
    refusals.add(STRANGER, BEGAN)
    (first,) = refusals.drain(0)
    assert first == Entry(
        BEGAN,
        STRANGER.actor,
        "access.refuse",
        "inference",
        "refused",
        {"error": "unauthenticated", "change": "", "times": 1},
    )
    for number in range(1, 1001):
        refusals.add(STRANGER, BEGAN + number * SECOND // 100)
        assert refusals.drain(number) == []
    refusals.add(ROBOT, BEGAN + 11 * SECOND)
    # Another kind needs not wait for the period of the first.
    assert [kind_of(entry) for entry in refusals.drain(PERIOD_NS - 1)] == [ROBOT]
    (rest,) = refusals.drain(PERIOD_NS)
    assert rest.details["times"] == 1000
    assert rest.details["first"] == "2026-11-18T00:00:00.010000Z"
    assert rest.wall_ns == BEGAN + 10 * SECOND
    # A new period: the next one is recorded at once again.
    refusals.add(STRANGER, BEGAN)
    assert len(refusals.drain(PERIOD_NS + 1)) == 1


def test_places_of_a_period_that_is_over_are_free() -> None:
    """Also where nothing was refused in the meantime."""
    refusals = Refusals()
    for number in range(MOST_OF_STRANGERS):
        refusals.add(stranger(number), BEGAN)
    assert len(refusals.drain(0)) == MOST_OF_STRANGERS
    assert refusals.drain(PERIOD_NS) == []
    refusals.add(stranger(MOST_OF_STRANGERS), BEGAN)
    assert [kind_of(entry) for entry in refusals.drain(PERIOD_NS + 1)] == [stranger(MOST_OF_STRANGERS)]


def test_strangers_do_not_hide_a_caller_with_a_name() -> None:
    refusals = Refusals()
    for number in range(MOST * 4):
        refusals.add(stranger(number), BEGAN)
    refusals.add(ROBOT, BEGAN)
    entries = refusals.drain(0)
    assert ROBOT in [kind_of(entry) for entry in named(entries)]
    assert len(named(entries)) == MOST_OF_STRANGERS + 1
    (others,) = (entry for entry in entries if "beyond" in entry.details)
    assert others.actor == anonymous()
    assert others.object == ""
    hidden = MOST * 4 - MOST_OF_STRANGERS
    assert others.details["times"] == others.details["unauthenticated"] == hidden


KINDS = st.builds(
    Kind,
    st.builds(
        Actor,
        st.sampled_from(["anonymous", "token:robot", "oidc:ada"]),
        st.sampled_from(["anonymous", "token", "oidc"]),
        st.integers(0, 400).map(str),
    ),
    st.sampled_from(["inference", "metadata"]),
    st.sampled_from(["unauthenticated", "permission_denied"]),
    st.sampled_from(["", "model.load"]),
)
#: A refusal, or nanoseconds until the tally is drained, and whether of everything.
STEPS = st.lists(
    st.one_of(
        st.tuples(KINDS, st.integers(1, 3)),
        st.tuples(st.integers(0, 2 * PERIOD_NS), st.booleans()),
        st.tuples(st.just("flood"), st.integers(1, 600)),
    ),
    max_size=40,
)


@given(STEPS)
def test_counts_add_up_and_are_bounded(steps: list[tuple[object, int]]) -> None:
    refusals = Refusals()
    now = 0
    given_: Counter[Kind] = Counter()
    errors: Counter[str] = Counter()
    entries: list[Entry] = []

    def add(kind: Kind, times: int) -> None:
        for _ in range(times):
            refusals.add(kind, BEGAN + now)
        given_[kind] += times
        errors[kind.error] += times

    def drain(*, everything: bool) -> None:
        found = refusals.drain(now, everything=everything)
        assert len(found) <= MOST + 1
        assert all(entry.details["times"] > 0 for entry in found)
        entries.extend(found)

    for what, number in steps:
        if isinstance(what, Kind):
            add(what, number)
        elif isinstance(what, int):
            now += what
            drain(everything=bool(number))
        else:
            for each in range(number):
                add(stranger(each), 1)
        assert len(refusals._counts) <= MOST
        assert refusals.waiting == given_.total() - sum(entry.details["times"] for entry in entries)
    drain(everything=True)
    assert refusals.waiting == 0
    assert refusals.drain(now, everything=True) == []
    assert sum(entry.details["times"] for entry in entries) == given_.total()
    recorded: Counter[Kind] = Counter()
    of_errors: Counter[str] = Counter()
    for entry in entries:
        if "beyond" in entry.details:
            of_errors.update({each: entry.details[each] for each in errors if each in entry.details})
        else:
            recorded[kind_of(entry)] += entry.details["times"]
            of_errors[entry.details["error"]] += entry.details["times"]
    # Nobody is blamed for what others did, and no error is taken for another.
    assert recorded <= given_
    assert of_errors == errors
