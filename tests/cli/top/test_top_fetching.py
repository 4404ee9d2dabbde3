"""Samples on a thread: failures are passed on and retried, and the end waits for no call."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable

import pytest
from top_views import a_sample

from isochrone.cli.api_client import ApiFailed
from isochrone.cli.top.samples import Sample
from isochrone.cli.top.screen.fetching import Fetching


class FakeSource:
    """Answers with the results of functions, one after the other; the last one again and again."""

    def __init__(self, *answers: Callable[[], Sample]) -> None:
        self._answers = list(answers)
        self.closed = threading.Event()

    def __enter__(self) -> FakeSource:
        return self

    def __exit__(self, *error: object) -> None:
        self.closed.set()

    def sample(self) -> Sample:
        return (self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])()


def failing(error: Exception) -> Callable[[], Sample]:
    def fail() -> Sample:
        raise error

    return fail


def wait_for(fetching: Fetching, count: int) -> list[Sample | BaseException]:
    found: list[Sample | BaseException] = []
    while len(found) < count:
        assert select.select([fetching.descriptor], [], [], 30)[0], found
        found += fetching.taken()
    return found


def test_samples_come_again_after_a_failure() -> None:
    sample = a_sample()
    source = FakeSource(lambda: sample, failing(ApiFailed("away")), lambda: sample)
    with Fetching(source, 0.01) as fetching:
        found = wait_for(fetching, 3)
    assert found[0] is sample
    assert isinstance(found[1], ApiFailed)
    assert found[2] is sample
    assert source.closed.wait(30)


def test_an_unexpected_error_is_passed_on_and_ends_it() -> None:
    source = FakeSource(failing(ZeroDivisionError("a mistake")))
    with Fetching(source, 0.01) as fetching:
        (found,) = wait_for(fetching, 1)
        assert isinstance(found, ZeroDivisionError)
        assert source.closed.wait(30)


@pytest.mark.timeout(60)
def test_the_end_does_not_wait_for_a_call_that_hangs() -> None:
    go_on = threading.Event()

    def hang() -> Sample:
        go_on.wait(50)
        return a_sample()

    source = FakeSource(hang)
    with Fetching(source, 0.01) as fetching:
        assert fetching.taken() == []
    assert not source.closed.is_set()
    # What comes late is told to nobody, and written to no descriptor.
    go_on.set()
    assert source.closed.wait(30)
    assert list(fetching._found) == []
