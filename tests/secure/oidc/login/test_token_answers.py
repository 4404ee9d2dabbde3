"""Answers of token endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from isochrone.secure.oidc.fetching import Answer
from isochrone.secure.oidc.login.failures import LoginFailed, Refused
from isochrone.secure.oidc.login.token_answers import Tokens, read_tokens

RIGHT: dict[str, Any] = {"token_type": "bearer", "access_token": "a", "refresh_token": "r"}


def test_tokens() -> None:
    assert read_tokens(Answer(200, RIGHT)) == Tokens("a", "", "r")


@pytest.mark.parametrize(
    "changes",
    [
        {"token_type": "DPoP"},
        {"token_type": None},
        {"access_token": ""},
        {"access_token": 7},
        {"refresh_token": ["r"]},
        {"id_token": "a\r\nx-header: 1"},
        {"access_token": "é"},
    ],
)
def test_answers_that_are_no_tokens(changes: dict[str, Any]) -> None:
    with pytest.raises(LoginFailed):
        read_tokens(Answer(200, {**RIGHT, **changes}))


@pytest.mark.parametrize(("status", "is_final"), [(400, True), (401, True), (403, True), (429, False), (503, False)])
def test_a_refusal_is_final_or_for_now(status: int, is_final: bool) -> None:
    with pytest.raises(LoginFailed, match="refused: invalid_grant: used") as refused:
        read_tokens(Answer(status, {"error": "invalid_grant", "error_description": "used", "access_token": "secret"}))
    assert isinstance(refused.value, Refused) is is_final
    assert "secret" not in str(refused.value)
