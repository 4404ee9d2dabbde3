"""Which workers of a pool stand by: always as many serve as should and can, and none changes places without need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.workers.standbys import standbys

NAMES = [f"cpu-{number}" for number in range(1, 12)]


def after(
    count: int, serving: int, standing_by: str = "", registered: str | None = None, ready: str | None = None
) -> str:
    """The numbers of those that stand by, of so many processes; None: all of them."""

    def named(numbers: str | None) -> set[str]:
        return set(NAMES[:count]) if numbers is None else {f"cpu-{number}" for number in numbers.split()}

    found = standbys(NAMES[:count], serving, named(standing_by), named(registered), named(ready or registered))
    return " ".join(name.removeprefix("cpu-") for name in NAMES if name in found)


def test_the_last_ones_stand_by_at_the_start() -> None:
    assert after(4, 3, registered="") == "4"


def test_the_first_that_is_ready_serves() -> None:
    assert after(3, 2, "3", registered="3", ready="3") == "2"


def test_one_takes_the_place_of_a_lost_worker_which_stands_by_when_it_comes_back() -> None:
    assert after(4, 3, "4", registered="1 3 4") == "2"
    assert after(4, 3, "2") == "2"


def test_one_that_has_not_loaded_its_models_takes_no_place() -> None:
    assert after(4, 3, "4", ready="1 2 3") == "4"
    assert after(4, 3, "4", registered="1 2 3 4", ready="1 3 4") == "2"


def test_growing_takes_those_that_stand_by_first() -> None:
    # From 2 + 1 to 3 + 1: the fourth process has only begun.
    assert after(4, 3, "3", registered="1 2 3") == "4"


def test_shrinking_lets_the_last_ones_stand_by() -> None:
    assert after(4, 2, "4") == "3 4"


@given(
    count=st.integers(0, 11),
    serving=st.integers(0, 12),
    standing_by=st.sets(st.sampled_from(NAMES)),
    registered=st.sets(st.sampled_from(NAMES)),
    ready=st.sets(st.sampled_from(NAMES)),
)
def test_as_many_serve_as_should_and_nothing_changes_a_second_time(
    count: int, serving: int, standing_by: set[str], registered: set[str], ready: set[str]
) -> None:
    names, ready = NAMES[:count], ready & registered
    found = standbys(names, serving, standing_by, registered, ready)
    serves = set(names) - found
    assert found <= set(names)
    assert len(serves) == min(serving, count)
    assert not (found & ready) or serves <= ready, "one that is ready stands by while another that is not serves"
    assert standbys(names, serving, found, registered, ready) == found
    # Those that could go on serving do.
    kept = serves & (set(names) - standing_by) & ready
    could = (set(names) - standing_by) & ready
    assert len(kept) == min(len(could), serving)
