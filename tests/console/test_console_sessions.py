"""Sessions and logins that have begun, without I/O: how many, how long, whose; and what belongs to this site."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.responses import Response

from isochrone.console.login.attempts import SECONDS, Attempts
from isochrone.console.login.local import (
    LOGIN,
    SESSION,
    cookie_of,
    may_use_cookie,
    next_page,
    own_origin,
    set_cookie,
)
from isochrone.console.login.page import failed_page, leaving_page, login_page
from isochrone.console.login.sessions import IDLE_SECONDS, LONGEST_SECONDS, Sessions
from isochrone.console.places import PAGE_PATHS
from isochrone.secure.oidc.login.code_request import CodeRequest
from isochrone.secure.oidc.settings import Provider

PROVIDER = Provider("https://login.example", "fleet", "console")


def test_a_session_is_found_by_its_id_alone_until_it_rests_or_gets_old() -> None:
    sessions = Sessions()
    session = sessions.begin("Bearer a", "token:a", 0.0)
    assert len(session.id) >= 43
    assert session.id != session.page_token
    for other in ("", "x", session.page_token, session.credential, session.id[:-1], session.id + "x"):
        assert sessions.find(other, 1.0) is None
    now = 0.0
    while now < LONGEST_SECONDS - IDLE_SECONDS:
        now += IDLE_SECONDS - 1
        assert sessions.find(session.id, now) is session, "each use keeps it"
    assert sessions.find(session.id, LONGEST_SECONDS) is None
    assert sessions.find(session.id, 1.0) is None, "what has ended does not begin again"
    second = sessions.begin("Bearer a", "token:a", 0.0)
    assert sessions.find(second.id, IDLE_SECONDS) is None
    assert len(sessions) == 0
    secrets = (session.id, session.page_token, "Bearer a")
    assert not any(each in repr(session) for each in secrets)


def test_sessions_are_bounded_and_nobody_ends_those_of_others() -> None:
    sessions = Sessions(most=6, most_of_one=3)
    others = [sessions.begin(f"Bearer {name}", name, 0.0) for name in ("a", "b")]
    own = [sessions.begin("Bearer c", "c", 0.0) for _ in range(50)]
    assert len(sessions) == 5
    assert all(sessions.find(each.id, 1.0) for each in (*others, *own[-3:]))
    assert sessions.find(own[0].id, 1.0) is None
    sessions.find(others[0].id, 2.0)
    more = [sessions.begin("Bearer d", f"d{number}", 3.0) for number in range(2)]
    assert len(sessions) == 6
    assert all(sessions.find(each.id, 3.0) for each in (others[0], *more))
    assert sessions.find(others[1].id, 3.0) is None, "the one that rested longest makes room"
    assert sessions.end(more[0].id) is more[0]
    assert sessions.end(more[0].id) is None


def test_a_login_is_answered_once_in_time_in_its_browser() -> None:
    attempts = Attempts(most=3)

    def begun(now: float) -> tuple[str, str]:
        request = CodeRequest.new(PROVIDER, "https://c.example/console/login/callback")
        return request.state, attempts.begin(request, "plant", "/console/", True, now).browser

    state, browser = begun(0.0)
    for other in (("", browser), ("x", browser), (state, ""), (state, "x"), (browser, state)):
        assert attempts.take(*other, 1.0) is None
    assert attempts.take(state, browser, 1.0) is not None
    assert attempts.take(state, browser, 1.0) is None, "replayed"
    late = begun(0.0)
    assert attempts.take(*late, SECONDS) is None
    many = [begun(float(number)) for number in range(5)]
    assert len(attempts) == 3
    assert [attempts.take(*each, 5.0) is not None for each in many] == [False, False, True, True, True]
    begun(0.0)
    begun(SECONDS)
    assert len(attempts) == 1, "those that nobody answered are forgotten"


@pytest.mark.parametrize(
    "asked",
    [
        *("", "https://evil.example", "//evil.example", "/\\evil.example", "/console/../v1", "/console//evil.example"),
        *("/console", "/consolex/", "/v1/status", "javascript:alert(1)", "/console/latency\r\nset-cookie: a=b"),
        *(
            "/console/latency?x=\n",
            "/console/lat\u00e9ncy",
            "/console/?" + "x" * 600,
            "/console/login",
            "/console/logout",
        ),
        *("\t//evil.example", " /console/", "/console/\\evil.example", "/console/?x#//evil", "http:/console/"),
    ],
)
def test_a_login_leads_to_no_other_place(asked: str) -> None:
    assert next_page(asked) == "/console/"


@given(st.text())
def test_whatever_is_asked_for_a_login_leads_to_a_page_of_the_console(asked: str) -> None:
    for each in (asked, f"/console/{asked}", f"/console/latency?{asked}"):
        assert next_page(each).partition("?")[0].removeprefix("/console") in PAGE_PATHS


def test_pages_are_kept_with_their_query() -> None:
    assert next_page("/console/what-if?q=a%20b&c=1") == "/console/what-if?q=a%20b&c=1"


@pytest.mark.parametrize(
    ("host", "origin", "own"),
    [
        ("127.0.0.1:8003", "http://127.0.0.1:8003", True),
        ("127.0.0.1:8003", "http://127.0.0.1:8004", False),
        ("127.0.0.1:8003", "http://127.0.0.2:8003", False),
        ("c.example", "https://c.example", True),
        ("c.example:443", "https://c.example", True),
        ("c.example", "https://c.example:8443", False),
        ("c.example", "https://c.example.evil.example", False),
        ("c.example", "https://evil.example", False),
        ("c.example", "null", False),
        ("c.example", "", False),
        ("c.example", "ftp://c.example", False),
        ("c.example", "https://c.example:x", False),
        ("", "", False),
    ],
)
def test_only_this_site_is_this_site(host: str, origin: str, own: bool) -> None:
    found = own_origin(Headers({"host": host, "origin": origin}))
    assert found == (f"{origin.partition('://')[0]}://{host}" if own else "")


@pytest.mark.parametrize(
    ("method", "headers", "may"),
    [
        ("GET", {}, True),
        ("GET", {"sec-fetch-site": "same-origin"}, True),
        ("GET", {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, True),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, True),
        ("GET", {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, False),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}, False),
        ("POST", {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}, False),
        ("POST", {"origin": "http://127.0.0.1:8003"}, True),
        ("POST", {"origin": "http://127.0.0.1:9000"}, False),
        ("GET", {"origin": "https://console.example"}, False),
    ],
)
def test_other_pages_cannot_use_the_cookie(method: str, headers: dict[str, str], may: bool) -> None:
    assert may_use_cookie(Headers({"host": "127.0.0.1:8003", **headers}), method) is may


@pytest.mark.parametrize(
    ("host", "is_secure", "name"),
    [
        ("c.example", True, "__Host-isochrone"),
        ("c.example:8443", True, "__Host-isochrone-8443"),
        ("127.0.0.1:8003", False, "isochrone-8003"),
        ("c.example", False, "isochrone"),
    ],
)
def test_cookies_are_of_one_controller_and_out_of_reach(host: str, is_secure: bool, name: str) -> None:
    response, headers = Response(), Headers({"host": host})
    set_cookie(response, headers, SESSION, "value", is_secure=is_secure)
    value, *attributes = response.headers["set-cookie"].lower().split("; ")
    assert value == f"{name}=value".lower()
    assert {"httponly", "path=/", "samesite=lax"} <= set(attributes)
    assert ("secure" in attributes) is is_secure
    assert not any(each.startswith(("domain", "max-age", "expires")) for each in attributes)
    back = Headers({"host": host, "cookie": f"{name}=value"})
    assert cookie_of(back, SESSION, is_secure=is_secure) == "value"
    assert cookie_of(back, SESSION, is_secure=not is_secure) == ""
    assert cookie_of(back, LOGIN, is_secure=is_secure) == ""


def test_nothing_that_is_given_becomes_markup() -> None:
    evil = '"><script>alert(1)</script>'
    for page in (login_page([evil], evil, problem=evil, notice=evil), leaving_page(evil, evil), failed_page(evil)):
        assert "<script" not in page
        assert evil not in page
    assert "not encrypted" in login_page([], "/console/", is_encrypted=False)
    assert "not encrypted" not in login_page([], "/console/")
