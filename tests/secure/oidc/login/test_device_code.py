"""Device codes: what is shown to people, and polling as the standard asks for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.secure.oidc.fetching import Answer
from isochrone.secure.oidc.login.device_code import Polling, read_device_code
from isochrone.secure.oidc.login.failures import LoginFailed

RIGHT: dict[str, Any] = {
    "device_code": "secret",
    "user_code": "WDJB-MJHT",
    "verification_uri": "https://login.example/device",
    "expires_in": 600,
}


def polling(interval: float = 5, lifetime: float = 600) -> Polling:
    return Polling(read_device_code(Answer(200, {**RIGHT, "interval": interval, "expires_in": lifetime})), 0.0)


def error(code: str) -> Answer:
    return Answer(400, {"error": code})


def test_a_code() -> None:
    found = read_device_code(Answer(200, RIGHT))
    assert (found.user_code, found.url, found.complete_url) == ("WDJB-MJHT", "https://login.example/device", "")
    assert (found.lifetime, found.interval) == (600, 5)


@pytest.mark.parametrize(
    "changes",
    [
        {"device_code": ""},
        {"user_code": 7},
        {"user_code": "A\x1b[2J"},
        {"verification_uri": "http://login.example/device"},
        {"verification_uri": "javascript:alert(1)"},
        {"verification_uri_complete": "http://evil.example/?user_code=A"},
        {"verification_uri_complete": "https://login.example/?user_code=\x1b[2J"},
        {"verification_uri_complete": 7},
    ],
)
def test_answers_that_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(LoginFailed):
        read_device_code(Answer(200, {**RIGHT, **changes}))


@pytest.mark.parametrize("value", [10**400, -1, 0, "5", None, True, 1e9, [5]])
def test_times_are_bounded(value: Any) -> None:
    found = read_device_code(Answer(200, {**RIGHT, "interval": value, "expires_in": value}))
    assert 1 <= found.interval <= 1800
    assert 1 <= found.lifetime <= 1800


def test_a_login_is_awaited() -> None:
    asked = polling()
    assert not asked.is_final(error("authorization_pending"))
    assert asked.interval == 5
    assert not asked.is_final(error("slow_down"))
    assert asked.interval == 10
    asked.failed()
    assert asked.interval == 20
    assert asked.is_final(Answer(200, {}))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("access_denied", "the login was refused: access_denied"),
        ("expired_token", "nobody confirmed the code in time"),
        ("invalid_client", "the provider refused: invalid_client"),
        ("", "the provider refused: status 400 without a reason"),
    ],
)
def test_a_login_that_ends(code: str, said: str) -> None:
    with pytest.raises(LoginFailed, match=said):
        polling().is_final(error(code))


@given(
    st.lists(st.sampled_from(["authorization_pending", "slow_down", "failed"]), max_size=400),
    st.floats(1, 60),
    st.floats(1, 1800),
)
def test_polling_ends_with_the_code_and_never_hurries(answers: list[str], interval: float, lifetime: float) -> None:
    asked, now = polling(interval, lifetime), 0.0
    for each in answers:
        before = asked.interval
        try:
            asked.check_time(now)
        except LoginFailed:
            assert now + before >= lifetime
            return
        now += asked.interval
        assert now < lifetime
        if each == "failed":
            asked.failed()
        else:
            assert not asked.is_final(error(each))
        assert before <= asked.interval <= 60
