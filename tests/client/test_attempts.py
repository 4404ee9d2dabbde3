"""Which failures are followed by another attempt, and when: no server, no sleep."""

from __future__ import annotations

import pytest

from isochrone.client.address import parse_address
from isochrone.client.attempts import Attempts
from isochrone.clock import MILLISECOND, SECOND
from isochrone.errors import (
    ConnectionLost,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    IsochroneError,
    QueueFull,
    Unavailable,
)

ADDRESS = parse_address("here:8000")


def refused() -> Unavailable:
    return Unavailable("refused").not_begun()


def test_waiting_times_double_and_attempts_are_bounded() -> None:
    attempts = Attempts(3, None, 0, ADDRESS)
    delays = [attempts.delay_after(refused(), 0) for _ in range(3)]
    for number, delay in enumerate(delays):
        assert 0.01 * 2**number <= delay <= 0.02 * 2**number
    last = refused()
    with pytest.raises(Unavailable) as caught:
        attempts.delay_after(last, 0)
    assert caught.value is last
    with pytest.raises(Unavailable):
        Attempts(0, None, 0, ADDRESS).delay_after(refused(), 0)


@pytest.mark.parametrize("error", [refused(), QueueFull("full").not_begun(), ConnectionLost("lost", unprocessed=True)])
def test_what_has_not_begun_is_sent_again(error: IsochroneError) -> None:
    assert Attempts(1, None, 0, ADDRESS).delay_after(error, 0) > 0


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("perhaps begun"),
        QueueFull("perhaps begun"),
        ConnectionLost("after the request was sent"),
        Internal("the model failed"),
        InvalidArgument("wrong").not_begun(),
        DeadlineExceeded("would miss it").not_begun(),
    ],
)
def test_everything_else_is_final(error: IsochroneError) -> None:
    with pytest.raises(type(error)) as caught:
        Attempts(3, None, 0, ADDRESS).delay_after(error, 0)
    assert caught.value is error


def test_nothing_outlasts_the_deadline() -> None:
    attempts = Attempts(9, 50, SECOND, ADDRESS)
    assert attempts.seconds(SECOND) == 0.05
    assert attempts.seconds(SECOND + 20 * MILLISECOND) == pytest.approx(0.03)
    assert attempts.delay_after(refused(), SECOND) < 0.05
    with pytest.raises(Unavailable):
        attempts.delay_after(refused(), SECOND + 45 * MILLISECOND)
    with pytest.raises(DeadlineExceeded, match=r"^no answer from http://here:8000 within the deadline$"):
        attempts.seconds(SECOND + 50 * MILLISECOND)
    assert Attempts(9, None, 0, ADDRESS).seconds(0) is None


def test_the_servers_own_waiting_time_is_kept_unless_it_is_long() -> None:
    soon, late = refused(), refused()
    soon.retry_after, late.retry_after = 0.5, 30.0
    assert Attempts(3, None, 0, ADDRESS).delay_after(soon, 0) == 0.5
    with pytest.raises(Unavailable):
        Attempts(3, None, 0, ADDRESS).delay_after(late, 0)
    with pytest.raises(Unavailable):
        Attempts(3, 400, 0, ADDRESS).delay_after(soon, 0)
