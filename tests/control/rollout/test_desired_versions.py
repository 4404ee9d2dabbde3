"""What each worker should have, and whether it fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from observed_states import POOL, assignment, rollout, with_state

from isochrone.control.rollout.desired_versions import (
    WITHDRAWN,
    desired_versions,
    differing,
    spare,
    stages_of,
)
from isochrone.control.rollout.memory import lack_of_memory
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import EpochRecord, Split
from isochrone.control.state.rollout_records import ABORTING, DRAINING, PENDING, PREPARING, Change

GIB = 1 << 30


def a_worker(pool: str = POOL, memory: int = 0) -> WorkerRecord:
    return WorkerRecord("w1", "h", 1, 1, pool=pool, memory=memory)


def test_what_is_committed_and_what_was_before_it() -> None:
    epoch = EpochRecord(3, {"m": assignment("3", previous="2"), "n": assignment("1")})
    assert desired_versions(a_worker(), epoch, ()) == {"m": {"3", "2"}, "n": {"1"}}


def test_nothing_of_models_of_other_pools() -> None:
    epoch = EpochRecord(3, {"m": assignment("3", previous="2")})
    assert desired_versions(a_worker("gpu"), epoch, ()) == {}


def test_a_canary_is_wanted() -> None:
    epoch = EpochRecord(3, {"m": assignment("3", canary=Split("4"))})
    assert desired_versions(a_worker(), epoch, ()) == {"m": {"3", "4"}}


def test_what_is_prepared_is_wanted_and_what_is_aborted_is_not() -> None:
    epoch = EpochRecord(1, {"m": assignment("1")})
    assert desired_versions(a_worker(), epoch, [with_state(rollout(), PREPARING)]) == {"m": {"1", "2"}}
    for state in (PENDING, ABORTING, DRAINING):
        assert desired_versions(a_worker(), epoch, [with_state(rollout(), state)]) == {"m": {"1"}}


def test_a_canary_that_was_rolled_back_is_wanted_until_it_is_withdrawn() -> None:
    epoch = EpochRecord(3, {"m": assignment("1")})
    going = with_state(rollout(epoch=3), ABORTING)
    assert desired_versions(a_worker(), epoch, [going]) == {"m": {"1", "2"}}
    gone = with_state(rollout(epoch=3, since={WITHDRAWN: 101.0}), ABORTING)
    assert desired_versions(a_worker(), epoch, [gone]) == {"m": {"1"}}


def test_what_was_served_stays_while_gateways_may_not_have_seen_the_commit() -> None:
    epoch = EpochRecord(2, {"m": assignment("2", previous="1", memory=2 * GIB)})
    changes = {"m": Change("2", "1", pools=(POOL,), memory=2 * GIB)}
    assert desired_versions(a_worker(memory=3 * GIB), epoch, ()) == {"m": {"2"}}
    draining = with_state(rollout(changes=changes, epoch=2), DRAINING)
    assert desired_versions(a_worker(memory=3 * GIB), epoch, [draining]) == {"m": {"1", "2"}}


def test_what_moves_is_on_both_pools_until_it_has_moved() -> None:
    changes = {"m": Change("1", "1", pools=("gpu",), left=(POOL,))}
    before = EpochRecord(1, {"m": assignment("1")})
    preparing = with_state(rollout(changes=changes), PREPARING)
    assert (
        desired_versions(a_worker(), before, [preparing])
        == desired_versions(a_worker("gpu"), before, [preparing])
        == {"m": {"1"}}
    )
    after = EpochRecord(2, {"m": assignment("1", pools=("gpu",))})
    draining = with_state(rollout(changes=changes, epoch=2), DRAINING)
    assert (
        desired_versions(a_worker(), after, [draining])
        == desired_versions(a_worker("gpu"), after, [draining])
        == {"m": {"1"}}
    )
    assert desired_versions(a_worker(), after, ()) == {}


def test_what_only_stands_by_is_spare_until_a_rollout_brings_it_back() -> None:
    epoch = EpochRecord(3, {"m": assignment("3", previous="2", canary=Split("4")), "n": assignment("1")})
    assert spare(a_worker(), epoch, ()) == {"m": {"2"}}
    back = rollout("2", kind="rollback")
    assert spare(a_worker(), epoch, [with_state(back, PREPARING)]) == {}
    # Neither what gateways may still ask for after a commit nor a rolled back canary holds up what is served.
    assert spare(
        a_worker(), epoch, [with_state(rollout("3", changes={"m": Change("3", "2", pools=(POOL,))}), DRAINING)]
    ) == {"m": {"2"}}
    assert spare(a_worker(), epoch, [with_state(rollout("5", epoch=3), ABORTING)]) == {"m": {"2", "5"}}
    assert spare(a_worker("gpu"), epoch, ()) == {}


def test_stages_are_those_served_and_those_coming() -> None:
    epoch = EpochRecord(3, {"e": assignment(stages=("a",)), "a": assignment()})
    coming = rollout(changes={"e": Change("2", "1", stages=("b",))})
    assert stages_of(epoch, [coming]) == {"e": {"a", "b"}, "a": frozenset()}


def test_the_way_back_goes_when_there_is_no_room() -> None:
    epoch = EpochRecord(3, {"m": assignment("3", previous="2", memory=GIB)})
    preparing = with_state(rollout("4", changes={"m": Change("4", "3", pools=(POOL,), memory=GIB)}), PREPARING)
    assert desired_versions(a_worker(memory=3 * GIB), epoch, [preparing]) == {"m": {"2", "3", "4"}}
    assert desired_versions(a_worker(memory=2 * GIB), epoch, [preparing]) == {"m": {"3", "4"}}


def test_only_as_many_ways_back_go_as_must() -> None:
    epoch = EpochRecord(
        3,
        {"large": assignment("2", previous="1", memory=2 * GIB), "small": assignment("2", previous="1", memory=GIB)},
    )
    assert desired_versions(a_worker(memory=5 * GIB), epoch, ()) == {"large": {"2"}, "small": {"1", "2"}}


def test_lack_of_memory_is_told_with_all_figures() -> None:
    epoch = EpochRecord(1, {"m": assignment(memory=GIB)})
    record = rollout(changes={"m": Change("2", "1", pools=(POOL,), memory=GIB)})
    assert lack_of_memory(a_worker(memory=2 * GIB), epoch, (), record) == ""
    reported = lack_of_memory(a_worker(memory=GIB + 1), epoch, (), record)
    assert "m version 2 needs 1.0 GiB" in reported
    assert "2.0 GiB on worker w1, which has 1.0 GiB" in reported


def test_unknown_memory_is_no_lack() -> None:
    record = rollout(changes={"m": Change("2", "1", pools=(POOL,), memory=1 << 50)})
    assert lack_of_memory(a_worker(), EpochRecord(1, {}), (), record) == ""


_VERSIONS = st.dictionaries(st.sampled_from("mno"), st.frozensets(st.sampled_from("1234"), max_size=3))


@given(_VERSIONS, _VERSIONS)
def test_exactly_what_differs_is_named(models: dict[str, frozenset[str]], present: dict[str, frozenset[str]]) -> None:
    found = differing(models, present)
    for name in "mno":
        assert (name in found) == (models.get(name, frozenset()) != present.get(name, frozenset()))


@given(st.integers(1, 8), st.integers(0, 3), st.integers(0, 3))
def test_what_is_committed_never_goes_for_lack_of_memory(memory: int, first: int, second: int) -> None:
    epoch = EpochRecord(
        3,
        {
            "m": assignment("3", previous="2", memory=first * GIB),
            "n": assignment("5", previous="4", memory=second * GIB),
        },
    )
    found = desired_versions(a_worker(memory=memory * GIB), epoch, ())
    assert "3" in found["m"]
    assert "5" in found["n"]
