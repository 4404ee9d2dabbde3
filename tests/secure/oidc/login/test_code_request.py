"""Authorization requests: each answer belongs to one request, one provider and one process."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from isochrone.secure.oidc.discovery import Discovery
from isochrone.secure.oidc.login.code_request import CodeRequest, challenge
from isochrone.secure.oidc.login.failures import LoginFailed
from isochrone.secure.oidc.settings import Provider

PROVIDER = Provider("https://login.example", "fleet", "cli", login_parameters={"resource": "https://fleet.example"})
REDIRECT = "http://127.0.0.1:4321/callback"


def found(*, states_issuer: bool = False) -> Discovery:
    return Discovery("", "", "", "", "", (), states_issuer)


def test_the_url_of_a_request() -> None:
    request = CodeRequest.new(PROVIDER, REDIRECT)
    parts = urlsplit(request.url("https://login.example/auth"))
    assert parse_qs(parts.query) == {
        "resource": ["https://fleet.example"],
        "response_type": ["code"],
        "client_id": ["cli"],
        "redirect_uri": [REDIRECT],
        "scope": ["openid offline_access"],
        "state": [request.state],
        "nonce": [request.nonce],
        "code_challenge": [challenge(request.code_verifier)],
        "code_challenge_method": ["S256"],
        "prompt": ["consent"],
    }
    assert request.code_verifier not in parts.query
    assert request.url("https://login.example/auth?tenant=a").startswith("https://login.example/auth?tenant=a&")


def test_the_challenge_is_that_of_the_standard() -> None:
    """RFC 7636, appendix B."""
    assert challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk") == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_no_two_requests_share_a_secret() -> None:
    requests = [CodeRequest.new(PROVIDER, REDIRECT) for _ in range(50)]
    secrets = {text for each in requests for text in (each.state, each.nonce, each.code_verifier)}
    assert len(secrets) == 150
    # RFC 7636, section 4.1.
    assert all(43 <= len(text) <= 128 for text in secrets)


def test_login_parameters_replace_none_of_the_request() -> None:
    provider = Provider("https://login.example", "fleet", "cli", login_parameters={"state": "fixed", "code": "x"})
    request = CodeRequest.new(provider, REDIRECT)
    assert parse_qs(urlsplit(request.url("https://login.example/auth")).query)["state"] == [request.state]
    assert request.exchange("right")["code"] == "right"


def test_an_answer_has_the_state_of_its_request() -> None:
    request = CodeRequest.new(PROVIDER, REDIRECT)
    assert request.is_answer({"state": request.state, "code": "c"})
    for state in ("", "other", request.state + "x", request.state[:-1], "é"):
        assert not request.is_answer({"state": state, "code": "c"})
    assert not request.is_answer({"code": "c"})


def test_an_answer_of_another_issuer() -> None:
    request = CodeRequest.new(PROVIDER, REDIRECT)
    answer = {"state": request.state, "code": "c"}
    assert request.code_of(answer, found()) == "c"
    assert request.code_of({**answer, "iss": PROVIDER.issuer}, found(states_issuer=True)) == "c"
    for wrong, states in (({"iss": "https://evil.example"}, False), ({"iss": ""}, False), ({}, True)):
        with pytest.raises(LoginFailed, match="another issuer"):
            request.code_of({**answer, **wrong}, found(states_issuer=states))


def test_an_answer_that_refuses() -> None:
    request = CodeRequest.new(PROVIDER, REDIRECT)
    with pytest.raises(LoginFailed, match=r"refused: access_denied: no \[2Jentry"):
        request.code_of({"error": "access_denied", "error_description": "no\x1b[2Jentry", "code": "c"}, found())
    with pytest.raises(LoginFailed, match="no code"):
        request.code_of({"state": request.state}, found())
