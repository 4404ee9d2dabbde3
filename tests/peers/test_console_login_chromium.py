"""Logging in to the console of a real fleet in real Chromium: with an API token, and at a real OpenID provider, whose
pages the browser fills in; a reader who may look, an operator who may act, and the end of a session."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from openid_provider import OpenIdProvider

from bench.ports import ports_in_a_row
from bench.worker.peers.process import PeerUnavailable
from isochrone.secure.access.tokens import digest_of, new_token
from up_process import bundled_fleet, start_up

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")

pytestmark = [pytest.mark.peers, pytest.mark.skipif(CHROMIUM is None, reason="no chromium: scripts/setup_peers.sh")]

AUDIENCE = "https://fleet.example"
#: Milliseconds that something on a page may take on a busy machine.
PATIENCE = 60_000
PAGES = ("", "latency", "rollouts", "events", "what-if")


@dataclass
class Fleet:
    console: str
    tokens: dict[str, str]
    access: Path

    def change_access(self, before: str, after: str) -> None:
        text = self.access.read_text()
        assert before in text
        unfinished = self.access.with_suffix(".new")
        unfinished.write_text(text.replace(before, after))
        unfinished.replace(self.access)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("login")
    try:
        openid = OpenIdProvider(directory)
    except PeerUnavailable as error:
        pytest.skip(str(error))
    tokens = {name: new_token() for name in ("reader", "operator", "leaver")}
    with openid:
        access = directory / "access.yaml"
        settings = {
            "issuer": openid.issuer,
            "audience": AUDIENCE,
            "client_id": "console",
            "scopes": ["openid", "offline_access", "infer"],
            "login_parameters": {"resource": AUDIENCE},
        }
        lines = [f"providers: {{plant: {settings}}}", "tokens:"]
        lines += [f"  {name}: {{sha256: {digest_of(token)}}}" for name, token in tokens.items()]
        lines += ["assign:", "  - {to: ['oidc:plant/ada', 'token:operator'], roles: [operator]}"]
        lines += ["  - {to: ['token:reader', 'token:leaver'], roles: [reader]}"]
        access.write_text("\n".join(lines) + "\n")
        port = ports_in_a_row(1)
        path = bundled_fleet(directory, workers=1, control_port=port)
        listen = f'control: {{listen: "127.0.0.1:{port}"'
        text = path.read_text()
        assert listen in text
        path.write_text(text.replace(listen, f"{listen}, console: true") + "\nsecurity: {access: access.yaml}\n")
        with start_up(str(path), log=directory / "up.log") as up:
            said = up.wait_for("Ctrl-C stops everything")
            console = next(line.split()[1] for line in said.splitlines() if line.startswith("Console: "))
            yield Fleet(console, tokens, access)


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: playwright.Browser) -> Iterator[playwright.Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert errors == []
    context.close()


def log_in(page: playwright.Page, fleet: Fleet, name: str, path: str = "") -> None:
    page.goto(fleet.console + path)
    page.get_by_label("API token").fill(fleet.tokens[name])
    page.get_by_role("button", name="Log in with the token").click()
    playwright.expect(page.locator('[data-live="connection"]')).to_have_text("live", timeout=PATIENCE)


def log_out(page: playwright.Page) -> None:
    page.locator("[data-rights-button]").click()
    page.locator("[data-log-out]").click()
    playwright.expect(page.get_by_text("You are logged out.")).to_be_visible()


def test_a_reader_looks_and_cannot_act(page: playwright.Page, fleet: Fleet) -> None:
    expect = playwright.expect
    log_in(page, fleet, "reader", "rollouts")
    assert page.url == f"{fleet.console}rollouts"
    expect(page.locator('[data-version-of="detector"]')).to_have_text("1", timeout=PATIENCE)
    expect(page.locator("[data-rights-button]")).to_contain_text("Read-only")
    expect(page.locator("[data-start]")).to_be_hidden()
    expect(page.locator('[data-action="rollback"]').first).to_be_hidden()
    # What the page does not offer, the API refuses.
    page.evaluate("isochrone.act({method: 'POST', path: '/v1/models/detector/rollback', label: 'Roll back', body: {}})")
    expect(page.locator(".said.bad")).to_contain_text("does not allow fleet-change")
    # No script has the credential.
    assert page.evaluate("document.cookie") == ""
    assert page.evaluate("JSON.stringify({...sessionStorage, ...localStorage})").find("iso_") == -1
    page.locator("[data-rights-button]").click()
    expect(page.locator('[data-live="rights-text"]')).to_contain_text("You are token:reader. Allowed: fleet-read")
    expect(page.locator("[data-token]")).to_be_hidden()
    page.locator("[data-log-out]").click()
    expect(page.get_by_text("You are logged out.")).to_be_visible()
    # The page is neither in the browser's memory nor anywhere to be had.
    page.go_back()
    expect(page.get_by_label("API token")).to_be_visible()
    expect(page.get_by_text("detector")).to_have_count(0)


def test_an_operator_acts_and_is_named(page: playwright.Page, fleet: Fleet) -> None:
    expect = playwright.expect
    log_in(page, fleet, "operator", "rollouts")
    expect(page.locator("[data-rights-button]")).to_contain_text("May change")
    page.get_by_role("combobox", name="Model").click()
    page.get_by_role("option", name="detector").click()
    expect(page.get_by_role("combobox", name="Version")).to_have_value("2")
    page.locator("[data-start]").click()
    page.locator("[data-confirm]").click()
    done = page.locator('[data-rollout][data-state="done"]').first
    expect(done).to_contain_text("token:operator (console)", timeout=PATIENCE)
    log_out(page)


def test_a_page_whose_token_is_revoked_goes_to_the_login(page: playwright.Page, fleet: Fleet) -> None:
    expect = playwright.expect
    log_in(page, fleet, "leaver", "events")
    digest = digest_of(fleet.tokens["leaver"])
    fleet.change_access(f"{{sha256: {digest}}}", f"{{sha256: {digest}, revoked: true}}")
    expect(page.get_by_label("API token")).to_be_visible(timeout=PATIENCE)
    expect(page.get_by_role("alert")).to_contain_text("token:leaver is revoked")
    page.get_by_label("API token").fill(fleet.tokens["leaver"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Not logged in: token:leaver is revoked")
    # Back to the page that was open, as somebody who may.
    page.get_by_label("API token").fill(fleet.tokens["reader"])
    page.keyboard.press("Enter")
    expect(page.locator('[data-live="connection"]')).to_have_text("live", timeout=PATIENCE)
    assert page.url == f"{fleet.console}events"


def test_a_person_logs_in_at_a_real_provider(page: playwright.Page, fleet: Fleet) -> None:
    expect = playwright.expect
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{fleet.console}latency")
    page.get_by_role("button", name="Log in with plant").click()
    page.locator('input[name="login"]').fill("ada")
    page.locator('input[name="password"]').fill("of a test")
    page.locator('button[type="submit"]').click()
    page.get_by_role("button", name=re.compile("Continue", re.IGNORECASE)).click()
    expect(page.locator('[data-live="connection"]')).to_have_text("live", timeout=PATIENCE)
    assert page.url == f"{fleet.console}latency", "without a code or a state in it"
    (authorization,) = [url for url in asked if "code_challenge=" in url and "response_type=code" in url]
    assert "code_challenge_method=S256" in authorization
    expect(page.locator("[data-rights-button]")).to_contain_text("May change")
    page.locator("[data-rights-button]").click()
    expect(page.locator('[data-live="rights-text"]')).to_contain_text("You are oidc:plant/ada")
    # Back over the answer of the provider: it counts no more.
    callback = next(url for url in asked if "/console/login/callback" in url)
    page.goto(callback)
    expect(page.get_by_role("alert")).to_contain_text("This login is over")
    page.goto(fleet.console)
    log_out(page)


def test_someone_without_a_role_is_refused_after_the_provider(page: playwright.Page, fleet: Fleet) -> None:
    page.goto(fleet.console)
    page.get_by_role("button", name="Log in with plant").click()
    page.locator('input[name="login"]').fill("eve")
    page.locator('input[name="password"]').fill("of a test")
    page.locator('button[type="submit"]').click()
    page.get_by_role("button", name=re.compile("Continue", re.IGNORECASE)).click()
    playwright.expect(page.get_by_role("alert")).to_contain_text("oidc:plant/eve has no role")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_login_page_on_a_phone_with_keys_alone(browser: playwright.Browser, fleet: Fleet, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 320, "height": 568}, color_scheme=scheme)
    page = context.new_page()
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.goto(fleet.console)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(244, 246, 249)", "dark": "rgb(14, 19, 25)"}[scheme]
    for button in page.get_by_role("button").all():
        box = button.bounding_box()
        assert box is not None
        assert box["height"] >= 44
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Log in with plant"
    page.keyboard.press("Tab")
    page.keyboard.type(fleet.tokens["reader"])
    page.keyboard.press("Enter")
    playwright.expect(page.locator('[data-live="connection"]')).to_have_text("live", timeout=PATIENCE)
    assert hosts == {urlsplit(fleet.console).netloc}
    context.close()
