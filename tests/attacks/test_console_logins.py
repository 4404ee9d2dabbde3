"""The console's logins under attack, at a real controller: nothing without a session, nothing by another site, nothing
after the end, nothing with an answer of the provider that is not this browser's."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest
from guarded_servers import write_access
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from code_provider import AUDIENCE, CLIENT, CodeProvider, code_provider
from console_process import ConsoleProcess, console_process
from isochrone.console.places import (
    ASSETS,
    ASSETS_DIRECTORY,
    HISTORY,
    LIVE,
    LOGIN,
    LOGIN_CALLBACK,
    LOGIN_PROVIDER,
    LOGIN_STYLE,
    LOGOUT,
    MOUNT,
    PAGE_PATHS,
    SESSION,
    THEME,
)
from isochrone.secure.access.tokens import digest_of
from watching import wait_for

NICEGUI = "/console/_nicegui_ws/socket.io/?EIO=4&transport="
ROLLBACK = "/v1/models/none/rollback"


@pytest.fixture(scope="module")
def provider() -> Iterator[CodeProvider]:
    with code_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, provider: CodeProvider) -> Iterator[ConsoleProcess]:
    folder = tmp_path_factory.mktemp("console")
    tokens = write_access(folder / "access.yaml")
    settings = f'{{issuer: "{provider.issuer}", audience: "{AUDIENCE}", client_id: {CLIENT}, refresh_seconds: 10}}'
    text = (folder / "access.yaml").read_text() + '  - {to: ["oidc:plant/ada"], roles: [operator]}\n'
    text += '  - {to: ["group:plant/of-bob"], roles: [reader]}\n'
    (folder / "access.yaml").write_text(f"providers:\n  plant: {settings}\n{text}")
    with console_process(folder, tokens) as console:
        yield console
        said = console.log.read_text() + "".join(each.read_text() for each in console.audit.rglob("*.jsonl"))
        secrets = [*console.tokens.values(), *provider.issued]
        assert not any(each in said for each in secrets), "a credential in the log or the audit log"


@pytest.fixture
def browser(console: ConsoleProcess) -> Iterator[httpx.Client]:
    with console.browser() as browser:
        yield browser


def mounted_paths() -> list[str]:
    """Of everything that the console serves: its own routes, its files, and those of NiceGUI."""
    from nicegui import core  # it is imported, and not started

    own = [*(f"{MOUNT}{path}" for path in PAGE_PATHS), LIVE, f"{HISTORY}?model=", SESSION]
    own += [f"{ASSETS}/{each.name}" for each in ASSETS_DIRECTORY.iterdir()]
    framework = [re.sub(r"{\w+(:path)?}", "x", str(getattr(each, "path", ""))) for each in core.app.routes]
    return [*own, *(f"{MOUNT}{path}" for path in framework), f"{NICEGUI}polling", f"{NICEGUI}polling&sid=x"]


def refused(console: ConsoleProcess) -> set[tuple[str, str]]:
    """By actor and error: what only reads has no record of its own."""
    lines = [line for each in console.audit.rglob("*.jsonl") for line in each.read_text().splitlines()]
    records = [record for record in map(json.loads, lines) if record["action"] == "access.refuse"]
    assert all(record["object"] == "fleet-read" for record in records)
    return {(record["actor"]["name"], record["details"]["error"]) for record in records}


def test_a_token_that_is_tried_at_a_page_is_on_record(console: ConsoleProcess, tried: Counter[str]) -> None:
    """The answer is a redirect, which says that the token is not right."""
    with console.browser(headers={"authorization": f"Bearer {console.tokens['caller']}"}) as browser:
        assert browser.get("/console/").status_code == 303
    tried["a token tried at a page of the console"] += 1
    wait_for(lambda: ("token:caller", "permission_denied") in refused(console))


def test_nothing_is_served_without_a_session(console: ConsoleProcess, tried: Counter[str]) -> None:
    paths = mounted_paths()
    assert len(paths) > 25
    spellings = [
        *(
            "/console//live",
            "/console/./live",
            "/console/%6cive",
            "/console/live/",
            "//console/live",
            "/console/live%2f",
        ),
        *(
            "/console/login/../live",
            "/console/login/../",
            "/console/assets/../live",
            "/Console/live",
            "/console/login/x",
        ),
        *("/console/assets/login.css/../console.js", "/console", "/console/login%2f..%2flive"),
    ]
    with console.browser() as reader:
        assert console.with_token(reader, console.tokens["reader"]).status_code == 303
        name, ended = next(iter(reader.cookies.items()))
        reader.post(LOGOUT, headers=console.page_headers(reader))
    credentials: list[dict[str, str]] = [
        {},
        {"cookie": f"{name}=forged"},
        {"cookie": f"{name}={ended}"},
        {"cookie": f"{name}={console.tokens['admin']}"},
        {"cookie": f"__Host-{name}={ended}; {name}="},
        {"authorization": f"Bearer {console.tokens['revoked']}"},
        {"authorization": f"Bearer {console.tokens['caller']}"},
    ]
    for headers in credentials:
        with console.browser(headers=headers) as browser:
            for path in (*paths, *spellings):
                if path.partition("?")[0] in (THEME, LOGIN_STYLE):
                    continue
                for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT"):
                    # As it is written: httpx would remove the dots.
                    url = httpx.URL(console.url).copy_with(raw_path=path.encode())
                    request = httpx.Request(method, url, headers={**browser.headers, **console.origin()})
                    # A stream that is let through has no end.
                    answer = browser.send(request, stream=True)
                    is_moved = answer.status_code in (303, 307)
                    assert is_moved or answer.status_code in (400, 401, 403, 404, 405), (method, path, headers)
                    content = answer.read()
                    if is_moved:
                        assert answer.headers["location"].removeprefix(console.url).startswith("/console"), path
                        assert content == b""
                    tried["paths of the console without a session"] += 1

    # The role of "caller" does not let it look at the fleet.
    wait_for(lambda: {("anonymous", "unauthenticated"), ("token:caller", "permission_denied")} <= refused(console))


def test_what_is_open_says_nothing_of_the_fleet(browser: httpx.Client) -> None:
    for path in (LOGIN, LOGIN_STYLE, THEME, LOGIN_CALLBACK):
        answer = browser.get(path)
        assert answer.status_code in (200, 400)
        assert "<script" not in answer.text
    policy = browser.get(LOGIN).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "frame-ancestors 'none'" in policy


def socket(console: ConsoleProcess, browser: httpx.Client, origin: str | None) -> connect:
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    return connect(
        f"ws://127.0.0.1:{console.port}{NICEGUI}websocket",
        origin=origin,  # type: ignore[arg-type]
        additional_headers={"cookie": cookies} if cookies else {},
        proxy=None,
    )


def test_websockets_want_a_session_and_this_site(
    console: ConsoleProcess, browser: httpx.Client, tried: Counter[str]
) -> None:
    with pytest.raises(InvalidStatus, match="403"), socket(console, browser, console.url):
        pass
    console.with_token(browser, console.tokens["reader"])
    for origin in (None, "https://evil.example", f"http://127.0.0.1:{console.port + 1}", "null"):
        with pytest.raises(InvalidStatus, match="403"), socket(console, browser, origin):
            pass
        tried["WebSockets of the console from elsewhere"] += 1
    with socket(console, browser, console.url) as opened:
        assert str(opened.recv(30)).startswith("0{")


def test_roles_decide_what_a_session_may(console: ConsoleProcess, browser: httpx.Client, tried: Counter[str]) -> None:
    for caller, may in (("reader", False), ("operator", True)):
        assert console.with_token(browser, console.tokens[caller]).headers["location"] == "/console/"
        assert browser.get("/console/").status_code == 200
        assert console.session(browser)["identity"] == f"token:{caller}"
        assert browser.get("/v1/status").status_code == 200
        assert browser.get("/v1/rights").json()["may_change"] is may
        answer = browser.post(ROLLBACK, headers=console.page_headers(browser), json={})
        # 409: no fleet has been applied here.
        assert answer.status_code == (409 if may else 403), answer.text
        assert browser.post("/v1/epoch/restore", headers=console.page_headers(browser), json={}).status_code in (
            403,
            404,
        )
        tried["changes by a session whose roles do not allow them"] += 1 if may else 2
    for caller in ("caller", "limited", "nothing", "expired", "revoked"):
        with console.browser() as other:
            answer = console.with_token(other, console.tokens[caller])
            assert (answer.status_code, len(other.cookies)) in ((401, 0), (403, 0))
            assert "Not logged in" in answer.text
            tried["logins without a role for the console"] += 1
    for token in ("", "x", "a b", "ünïcode", "x" * 9000, "Bearer x", console.tokens["reader"] + "x", "a\r\nb: c"):
        with console.browser() as other:
            assert console.with_token(other, token).status_code == 401
            assert not other.cookies
            tried["logins with a wrong token"] += 1


def test_refused_logins_are_recorded_with_the_identity_that_was_proved(
    console: ConsoleProcess, provider: CodeProvider
) -> None:
    def refused() -> Counter[tuple[str, str, str]]:
        lines = [line for each in console.audit.rglob("*.jsonl") for line in each.read_text().splitlines()]
        records = [record for record in map(json.loads, lines) if record.get("action") == "console.login"]
        return Counter(
            (record["actor"]["name"], record["actor"]["kind"], record["object"])
            for record in records
            if record["outcome"] == "refused"
        )

    before = refused()
    for token in (console.tokens["caller"], console.tokens["revoked"], "nobodys"):
        with console.browser() as other:
            console.with_token(other, token)
    with console.browser() as other:
        assert other.get(provider.log_in(console.to_provider(other), "carol")).status_code == 403
    expected = Counter(
        {
            ("token:caller", "token", "token"): 1,
            ("anonymous", "anonymous", "token"): 2,
            ("oidc:plant/carol", "oidc", "plant"): 1,
        }
    )
    # Records of earlier refusals may still be on their way to the disk.
    wait_for(lambda: refused() - before >= expected)


def test_changes_are_recorded_with_the_identity(console: ConsoleProcess, browser: httpx.Client) -> None:
    console.with_token(browser, console.tokens["operator"])
    headers = {**console.page_headers(browser), "x-isochrone-user": "mallory"}
    browser.post("/v1/models/recorded/rollback", headers=headers, json={})

    def found() -> list[str]:
        lines = [line for each in console.audit.rglob("*") if each.is_file() for line in each.read_text().splitlines()]
        return [line for line in lines if '"recorded"' in line]

    wait_for(lambda: len(found()) >= 2)
    for line in found():
        assert "token:operator" in line
        assert "mallory" not in line


def test_other_sites_cannot_use_a_session(console: ConsoleProcess, browser: httpx.Client, tried: Counter[str]) -> None:
    console.with_token(browser, console.tokens["operator"])
    good = console.page_headers(browser)
    with console.browser() as other:
        console.with_token(other, console.tokens["admin"])
        foreign_token = console.session(other)["page_token"]
    neighbour = f"http://127.0.0.1:{console.port + 1}"
    forged = [
        console.origin(),
        {},
        {**good, "x-isochrone-page-token": ""},
        {**good, "x-isochrone-page-token": foreign_token},
        {**good, "x-isochrone-page-token": browser.cookies[f"isochrone-{console.port}"]},
        {**good, "origin": "https://evil.example"},
        {**good, "origin": neighbour},
        {**good, "origin": "null"},
        {**good, "sec-fetch-site": "same-site"},
        {**good, "host": "evil.example"},
    ]
    for headers in forged:
        for path in (ROLLBACK, "/v1/rollouts", LOGOUT):
            answer = browser.post(path, headers=headers, json={})
            is_untouched = path == LOGOUT and answer.json() == {"next": f"{LOGIN}?out=1"}
            assert answer.status_code in (401, 403) or is_untouched, (headers, path, answer.text)
            tried["changes that another site sends with the cookie"] += 1
    for headers in ({"origin": neighbour}, {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}):
        assert browser.get("/v1/status", headers=headers).status_code in (401, 403)
        assert browser.get(LIVE, headers=headers).status_code in (401, 403)
        tried["reading from another site with the cookie"] += 2
    for path, form in ((LOGIN, {"token": console.tokens["reader"]}), (LOGIN_PROVIDER, {"provider": "plant"})):
        for headers in ({}, {"origin": neighbour}, {"origin": "https://evil.example"}, {"origin": "null"}):
            with console.browser() as other:
                assert other.post(path, data=form, headers=headers).status_code == 403
                assert not other.cookies
                tried["logins that another site begins"] += 1
    assert console.session(browser)["identity"] == "token:operator", "none of them ended the session"
    assert browser.post(ROLLBACK, headers=good, json={}).status_code == 409


def test_a_login_makes_a_new_session_and_a_logout_ends_it(
    console: ConsoleProcess, browser: httpx.Client, tried: Counter[str]
) -> None:
    name = f"isochrone-{console.port}"
    browser.cookies.set(name, "fixed-by-an-attacker", domain="127.0.0.1")
    console.with_token(browser, console.tokens["reader"])
    ids = [value for value in browser.cookies.jar if value.value != "fixed-by-an-attacker"]
    assert ids
    browser.cookies.clear()
    console.with_token(browser, console.tokens["reader"])
    first = browser.cookies[name]
    # Whoever knew the cookie before a login knows nothing after it.
    console.with_token(browser, console.tokens["operator"])
    second = browser.cookies[name]
    assert first != second
    headers = console.page_headers(browser)
    assert browser.post(LOGOUT, headers=headers).json() == {"next": "/console/login?out=1"}
    assert name not in browser.cookies
    assert "logged out" in browser.get("/console/login?out=1").text
    for value in ("fixed-by-an-attacker", first, second):
        with console.browser(cookies={name: value}) as other:
            assert other.get("/console/").status_code == 303
            assert other.get(LIVE).status_code == 401
            assert other.get("/v1/status").status_code == 401
            assert other.post(ROLLBACK, headers=headers, json={}).status_code == 401
            tried["cookies of ended sessions, and fixed ones"] += 4


def test_a_login_leads_to_pages_of_the_console(
    console: ConsoleProcess, provider: CodeProvider, tried: Counter[str]
) -> None:
    evil = ("https://evil.example", "//evil.example", "/\\evil.example", "/console/../v1/status", "javascript:alert(1)")
    for given in evil:
        with console.browser() as browser:
            page = browser.get(f"/console/login?next={quote(given, safe='')}").text
            assert 'name="next" value="/console/"' in page
            answer = console.with_token(browser, console.tokens["reader"], given)
            assert answer.headers["location"] == "/console/"
        with console.browser() as browser:
            back = provider.log_in(console.to_provider(browser, next_page=given), "ada")
            assert browser.get(back).headers["location"] == "/console/"
        tried["redirects to elsewhere after a login"] += 3
    with console.browser() as browser:
        asked = browser.get("/console/latency?model=a").headers["location"]
        (wanted,) = parse_qs(urlsplit(asked).query)["next"]
        assert console.with_token(browser, console.tokens["reader"], wanted).headers["location"] == wanted
        assert wanted == "/console/latency?model=a"


def test_a_person_logs_in_at_the_provider(
    console: ConsoleProcess, provider: CodeProvider, browser: httpx.Client
) -> None:
    url = console.to_provider(browser, next_page="/console/rollouts")
    (redirect,) = parse_qs(urlsplit(url).query)["redirect_uri"]
    assert redirect == f"{console.url}/console/login/callback"
    answer = browser.get(provider.log_in(url, "ada"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/rollouts")
    assert console.session(browser)["identity"] == "oidc:plant/ada"
    assert browser.get("/console/rollouts").status_code == 200
    assert browser.post(ROLLBACK, headers=console.page_headers(browser), json={}).status_code == 409
    # The login at the provider ends with the session.
    before = len(provider.revoked)
    browser.post(LOGOUT, headers=console.page_headers(browser))
    wait_for(lambda: len(provider.revoked) == before + 1)
    with console.browser() as other:
        other.get(provider.log_in(console.to_provider(other), "bob"))
        assert console.session(other)["identity"] == "oidc:plant/bob"
        assert other.post(ROLLBACK, headers=console.page_headers(other), json={}).status_code == 403


def test_forged_replayed_and_foreign_answers_of_a_provider(
    console: ConsoleProcess, provider: CodeProvider, tried: Counter[str]
) -> None:
    def refused(browser: httpx.Client, address: str) -> None:
        browser.cookies.delete(f"isochrone-{console.port}") if f"isochrone-{console.port}" in browser.cookies else None
        answer = browser.get(address)
        assert answer.status_code in (400, 401, 403), address
        assert "Log in again" in answer.text
        assert f"isochrone-{console.port}" not in browser.cookies
        assert browser.get("/console/").status_code == 303
        tried["forged, replayed and foreign answers of a provider"] += 1

    with console.browser() as browser, console.browser() as attacker:
        mine = provider.log_in(console.to_provider(browser), "ada")
        theirs = provider.log_in(console.to_provider(attacker), "bob")
        parameters = parse_qs(urlsplit(mine).query)
        code, state = parameters["code"][0], parameters["state"][0]
        callback = f"{console.url}{LOGIN_CALLBACK}"
        # The attacker's own login, in the browser of somebody else; and an answer in a browser that asked for none.
        refused(browser, theirs)
        with console.browser() as stranger:
            refused(stranger, mine)
        for query in (
            *("", f"code={code}", f"state={state}x&code={code}", f"state=&code={code}"),
            *(f"state={state}&state={state}&code={code}", f"state={state}&code={code}&code=x"),
        ):
            refused(browser, f"{callback}?{query}")
        assert browser.get(mine).status_code == 303
        refused(browser, mine)
    answers = {
        "another issuer": lambda back: re.sub("iss=[^&]*", f"iss={quote('https://evil.example', safe='')}", back),
        "no issuer": lambda back: re.sub("&iss=[^&]*", "", back),
        "no code": lambda back: re.sub("code=[^&]*", "", back),
        "another code": lambda back: re.sub("code=[^&]*", "code=stolen", back),
        "an error": lambda back: re.sub("code=[^&]*", "error=access_denied&error_description=%3Cscript%3E", back),
    }
    for change in answers.values():
        with console.browser() as browser:
            back = provider.log_in(console.to_provider(browser), "ada")
            refused(browser, change(back))
            # An attempt is over, however it ended.
            refused(browser, back)
    with console.browser() as browser, console.browser() as attacker:
        # A code of another login, whose verifier this controller does not send.
        code = parse_qs(urlsplit(provider.log_in(console.to_provider(attacker), "bob")).query)["code"][0]
        refused(browser, re.sub("code=[^&]*", f"code={code}", provider.log_in(console.to_provider(browser), "ada")))
    for changes in ({"nonce": "of another login"}, {"aud": "another-client"}, {"exp": 1}, {"azp": "another-client"}):
        provider.id_claims = changes
        with console.browser() as browser:
            refused(browser, provider.log_in(console.to_provider(browser), "ada"))
    provider.id_claims = {}
    with console.browser() as browser:
        # Known to the provider, and not to the access file.
        refused(browser, provider.log_in(console.to_provider(browser), "eve"))
        form = {"provider": "nobody", "next": "/console/"}
        assert browser.post(LOGIN_PROVIDER, data=form, headers=console.origin()).status_code == 404


def read_to_end(chunks: Iterator[bytes]) -> None:
    """Both streams have something to say every ten seconds at least, as long as they are open."""
    ends = time.monotonic() + 60
    for _ in chunks:
        assert time.monotonic() < ends, "the stream goes on"


def closing_code(opened: ClientConnection) -> int:
    """Reads to the end."""
    try:
        while True:
            opened.recv(60)
    except ConnectionClosed as ended:
        return ended.rcvd.code if ended.rcvd is not None else 0


def revoked(console: ConsoleProcess, caller: str) -> tuple[str, str]:
    before = f"  {caller}: {{sha256: {digest_of(console.tokens[caller])}}}"
    return before, before.replace("}", ", revoked: true}")


def role_taken(caller: str) -> tuple[str, str]:
    before = f"to: ['token:{caller}'], roles: [{caller}]"
    return before, before.replace(f"[{caller}]", "[caller]")


@pytest.mark.parametrize("how", ["token revoked", "role taken", "logged out"])
def test_open_pages_end_with_the_right_to_look(
    console: ConsoleProcess, browser: httpx.Client, tried: Counter[str], how: str
) -> None:
    console.with_token(browser, console.tokens["reader"])
    headers = console.page_headers(browser)
    change = revoked(console, "reader") if how == "token revoked" else role_taken("reader")
    with (
        browser.stream("GET", LIVE) as live,
        browser.stream("GET", "/v1/events?follow=1") as events,
        socket(console, browser, console.url) as opened,
    ):
        assert (live.status_code, events.status_code) == (200, 200)
        chunks = live.iter_raw()
        assert b"retry" in next(chunks)
        opened.recv(30)
        if how == "logged out":
            with console.browser(cookies=dict(browser.cookies)) as other:
                assert other.post(LOGOUT, headers=headers).status_code == 200
        else:
            console.change_access(*change)
        read_to_end(chunks)
        read_to_end(events.iter_raw())
        assert closing_code(opened) == 1008
        tried["streams and WebSockets that were open when the right ended"] += 3
    assert browser.get("/console/").status_code == 303
    assert browser.get(LIVE).status_code in (401, 403)
    with pytest.raises(InvalidStatus, match="403"), socket(console, browser, console.url):
        pass
    if how != "logged out":
        console.change_access(*reversed(change))
        wait_for(lambda: console.with_token(browser, console.tokens["reader"]).status_code == 303)


def test_streams_of_commands_end_with_their_token_too(console: ConsoleProcess, tried: Counter[str]) -> None:
    headers = {"authorization": f"Bearer {console.tokens['operator']}"}
    change = revoked(console, "operator")
    with console.browser(headers=headers) as command, command.stream("GET", "/v1/events?follow=1") as events:
        assert events.status_code == 200
        console.change_access(*change)
        read_to_end(events.iter_raw())
        tried["streams and WebSockets that were open when the right ended"] += 1
    console.change_access(*reversed(change))


def test_sessions_are_renewed_and_end_when_the_provider_renews_no_more(
    console: ConsoleProcess, provider: CodeProvider, browser: httpx.Client, tried: Counter[str]
) -> None:
    console.change_access("refresh_seconds: 10}", "refresh_seconds: 10, leeway: 0}")
    # Below the margin of a renewal: it is due at once.
    provider.lifetime = 4.0
    try:
        renewals = provider.renewals
        assert browser.get(provider.log_in(console.to_provider(browser), "ada")).status_code == 303
        first = provider.issued[-3]
        expires = time.time() + provider.lifetime
        wait_for(lambda: provider.renewals == renewals + 1)
        wait_for(lambda: time.time() > expires)
        wait_for(lambda: browser.get("/v1/status", headers={"authorization": f"Bearer {first}"}).status_code == 401)
        # With its new settings, the keys of the provider are fetched again.
        wait_for(lambda: console.session(browser).get("identity") == "oidc:plant/ada")
        provider.renews = False
        with console.browser() as other:
            answer = other.get(provider.log_in(console.to_provider(other), "ada"))
            assert answer.status_code == 303
            wait_for(lambda: other.get("/console/").status_code == 303)
            assert other.get("/v1/status").status_code == 401
            tried["sessions whose token has expired"] += 2
    finally:
        provider.lifetime, provider.renews = 600.0, True
        console.change_access(", leeway: 0}", "}")


def test_tokens_never_reach_a_browser(console: ConsoleProcess, provider: CodeProvider, browser: httpx.Client) -> None:
    answers = [browser.get(provider.log_in(console.to_provider(browser), "ada"))]
    answers += [browser.get(path) for path in ("/console/", SESSION, "/v1/rights", "/console/rollouts")]
    sent = "".join(str(each.headers) + each.text for each in answers) + json.dumps(dict(browser.cookies))
    assert not any(token in sent for token in provider.issued)
