"""The choice among endpoints: the least loaded of those that answer, and always one while any is untried."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import SECOND
from isochrone.worker.remote.endpoints import EndpointChoice


def test_equal_endpoints_take_turns() -> None:
    choice = EndpointChoice(3)
    chosen = []
    for _ in range(6):
        position = choice.choose(0)
        assert position is not None
        chosen.append(position)
        choice.ended(position)
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_the_one_with_the_fewest_requests_in_flight() -> None:
    choice = EndpointChoice(3)
    assert [choice.choose(0) for _ in range(5)] == [0, 1, 2, 0, 1]
    choice.ended(1)
    choice.ended(1)
    assert choice.choose(0) == 1


def test_an_endpoint_that_fails_is_left_out_for_longer_each_time() -> None:
    choice = EndpointChoice(2)
    now, pauses = 0, []
    for _ in range(8):
        choice.failed(0, now)
        began = now
        while choice.choose(now, tried=[1]) is not None and _is_left_out(choice, now):
            now += SECOND // 20
        pauses.append((now - began) / SECOND)
    assert pauses[0] == 0.25
    assert pauses == sorted(pauses)
    assert pauses[-1] == 8


def _is_left_out(choice: EndpointChoice, now: int) -> bool:
    """Whether 1 is chosen however many requests it has."""
    return all(choice.choose(now) != 0 for _ in range(3))


def test_failures_of_requests_that_were_sent_together_count_once() -> None:
    choice = EndpointChoice(2)
    for _ in range(50):
        choice.failed(0, 0)
    assert not _is_left_out(choice, SECOND // 4)


def test_an_answer_ends_the_pause() -> None:
    choice = EndpointChoice(2)
    choice.failed(0, 0)
    assert _is_left_out(choice, 1)
    choice.answered(0)
    assert not _is_left_out(choice, 1)


def test_if_all_are_left_out_the_first_to_return_is_tried() -> None:
    choice = EndpointChoice(2)
    choice.failed(1, 0)
    choice.failed(0, 1)
    assert choice.choose(2) == 1


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["choose", "failed", "answered", "wait"]), st.integers(0, 3)), max_size=60),
)
def test_every_untried_endpoint_can_be_chosen_and_counts_return_to_zero(
    count: int, events: list[tuple[str, int]]
) -> None:
    choice, now, open_attempts = EndpointChoice(count), 0, []
    for event, number in events:
        position = number % count
        if event == "failed":
            choice.failed(position, now)
        elif event == "answered":
            choice.answered(position)
        elif event == "wait":
            now += number * SECOND
        else:
            tried: list[int] = []
            while (chosen := choice.choose(now, tried)) is not None:
                assert chosen not in tried
                tried.append(chosen)
                open_attempts.append(chosen)
            assert sorted(tried) == list(range(count))
    for position in open_attempts:
        choice.ended(position)
    assert [choice.in_flight(position) for position in range(count)] == [0] * count
