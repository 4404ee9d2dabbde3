"""The console in real Chromium, on a real fleet: a rollout started, watched and rolled back by clicks, and what the
pages must be for everybody: on a phone, with keys, without any other host, after sleep."""

from __future__ import annotations

import itertools
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx
import pytest

from bench.ports import ports_in_a_row
from up_process import bundled_fleet, start_up

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")

pytestmark = [pytest.mark.peers, pytest.mark.skipif(CHROMIUM is None, reason="no chromium: scripts/setup_peers.sh")]

TOKEN = "a-token-of-this-test"
PAGES = ("", "latency", "rollouts", "events", "what-if")
#: Milliseconds that something on a page may take on a busy machine.
PATIENCE = 60_000


@dataclass
class Fleet:
    console: str
    gateway: str
    api: httpx.Client
    #: URLs that browsers asked for.
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("console")
    port = ports_in_a_row(1)
    path = bundled_fleet(directory, workers=2, control_port=port)
    (directory / "token").write_text(TOKEN)
    text = path.read_text()
    listen = f'control: {{listen: "127.0.0.1:{port}"'
    assert listen in text
    path.write_text(text.replace(listen, f"{listen}, console: true, token_file: token"))
    with start_up(str(path), log=directory / "up.log") as up:
        said = up.wait_for("Ctrl-C stops everything")
        console = next(line.split()[1] for line in said.splitlines() if line.startswith("Console: "))
        gateway = next(re.findall(r"http://[\d.:]+", line)[0] for line in said.splitlines() if "Triton client" in line)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as api, loaded(gateway):
            yield Fleet(console, gateway, api)


class loaded:  # noqa: N801
    """A little load, so that there are figures to show."""

    def __init__(self, gateway: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, args=(gateway,), daemon=True)

    def _send(self, gateway: str) -> None:
        with httpx.Client(base_url=gateway, trust_env=False, timeout=30) as client:
            inputs = [
                {**each, "shape": [max(1, size) for size in each["shape"]]}
                for each in client.get("/v2/models/detector").json()["inputs"]
            ]
            for each in inputs:
                size = 1
                for dimension in each["shape"]:
                    size *= dimension
                each["data"] = [0] * size
            while not self._stop.wait(0.02):
                client.post("/v2/models/detector/infer", json={"inputs": inputs})

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: playwright.Browser, fleet: Fleet) -> Iterator[playwright.Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: fleet.asked.append(request.url))
    yield page
    assert errors == []
    context.close()


def opened(page: playwright.Page, fleet: Fleet, name: str = "") -> None:
    page.goto(fleet.console + name)
    playwright.expect(page.locator('[data-live="connection"]')).to_have_text("live", timeout=PATIENCE)


def served(fleet: Fleet, model: str) -> str:
    models = fleet.api.get("/v1/status").json()["models"]
    return next(each["version"] for each in models if each["name"] == model)


def test_a_rollout_is_started_watched_and_rolled_back_by_clicks(page: playwright.Page, fleet: Fleet) -> None:
    expect = playwright.expect
    opened(page, fleet, "rollouts")
    version = page.locator('[data-version-of="detector"]')
    expect(version).to_have_text("1", timeout=PATIENCE)
    # Read-only without the token: nothing to click, and the API refuses what the page does not offer.
    expect(page.locator("[data-rights-button]")).to_contain_text("Read-only")
    expect(page.locator("[data-start]")).to_be_hidden()
    page.evaluate("isochrone.act({method: 'POST', path: '/v1/models/detector/rollback', label: 'Roll back', body: {}})")
    expect(page.locator(".said.bad")).to_contain_text("needs a token")
    page.locator("[data-rights-button]").click()
    page.locator("[data-token]").fill("not-the-token")
    page.locator("[data-use-token]").click()
    expect(page.locator(".said.bad")).to_contain_text("not the controller's token")
    page.locator("[data-rights-button]").click()
    page.locator("[data-user]").fill("ada")
    page.locator("[data-token]").fill(TOKEN)
    page.locator("[data-use-token]").click()
    expect(page.locator("[data-rights-button]")).to_contain_text("May change")
    # Start.
    page.get_by_role("combobox", name="Model").click()
    page.get_by_role("option", name="detector").click()
    expect(page.get_by_role("combobox", name="Version")).to_have_value("2")
    page.locator("[data-start]").click()
    expect(page.get_by_role("alertdialog")).to_contain_text("Roll out detector 2?")
    page.locator("[data-confirm]").click()
    # Watch.
    expect(page.locator("[data-rollout]").first).to_contain_text("detector 1 → 2")
    expect(version).to_have_text("2", timeout=PATIENCE)
    expect(page.locator('[data-rollout][data-state="done"]').first).to_contain_text("ada (console)", timeout=PATIENCE)
    assert served(fleet, "detector") == "2"
    # Roll back; a question that is not confirmed does nothing.
    rollback = page.locator('[data-action="rollback"][data-about="detector"]')
    rollback.click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alertdialog")).to_have_count(0)
    rollback.click()
    page.locator("[data-confirm]").click()
    expect(version).to_have_text("1", timeout=PATIENCE)
    assert served(fleet, "detector") == "1"
    events = [each["what"] for each in fleet.api.get("/v1/events").json()["events"]]
    assert events.count("rollback started") == 1
    # The token is the tab's alone.
    other = page.context.new_page()
    opened(other, fleet, "rollouts")
    expect(other.locator("[data-rights-button]")).to_contain_text("Read-only")


def allowed(page: playwright.Page) -> None:
    page.locator("[data-rights-button]").click()
    page.locator("[data-token]").fill(TOKEN)
    page.locator("[data-use-token]").click()
    playwright.expect(page.locator("[data-rights-button]")).to_contain_text("May change")


def test_a_canary_is_aborted_and_another_promoted_by_clicks(page: playwright.Page, fleet: Fleet) -> None:
    expect = playwright.expect
    opened(page, fleet, "rollouts")
    allowed(page)
    for kind, state, version in (("abort", "aborted", "1"), ("promote", "done", "2")):
        for name, value in (("Model", "pipeline"), ("Canary", "on")):
            page.get_by_role("combobox", name=name).click()
            page.get_by_role("option", name=value).click()
        expect(page.get_by_role("combobox", name="Version")).to_have_value("2")
        page.locator("[data-start]").click()
        page.locator("[data-confirm]").click()
        # In canary until it is judged; there are no requests that it could be judged by.
        canary = page.locator('[data-rollout][data-state="canary"]')
        expect(canary).to_be_visible(timeout=PATIENCE)
        identity = canary.get_attribute("data-rollout")
        page.locator(f'[data-action="{kind}"]').click()
        expect(page.get_by_role("alertdialog")).to_contain_text(str(identity))
        page.locator("[data-confirm]").click()
        over = page.locator(f'[data-rollout="{identity}"]')
        expect(over).to_have_attribute("data-state", state, timeout=PATIENCE)
        assert served(fleet, "pipeline") == version


def test_live_figures_of_the_fleet(page: playwright.Page, fleet: Fleet) -> None:
    expect = playwright.expect
    opened(page, fleet)
    expect(page.locator(".tile")).to_have_count(2)
    expect(page.get_by_role("row", name=re.compile("detector")).first).to_contain_text("/s")
    opened(page, fleet, "latency")
    expect(page.get_by_role("group", name=re.compile("detector"))).to_be_visible(timeout=PATIENCE)
    page.locator("select[data-model]").select_option("detector")
    expect(page.locator("path.line.p99")).to_have_attribute("d", re.compile(r"M[\d.]+ [\d.]+L"), timeout=PATIENCE)
    expect(page.locator('[data-live="heat-map"] canvas')).to_be_visible()
    opened(page, fleet, "events")
    page.locator("[data-filter]").fill("rollback")
    expect(page.locator("tbody tr").first).to_contain_text("rollback")


def test_a_what_if_is_answered_beside_todays_figures(page: playwright.Page, fleet: Fleet) -> None:
    opened(page, fleet, "what-if")
    page.locator("select[name=load]").select_option("2")
    page.get_by_role("button", name="Simulate").click()
    playwright.expect(page.locator("[data-verdict]")).to_be_visible(timeout=PATIENCE)
    playwright.expect(page.locator('table[aria-label="Answer"]')).to_contain_text("then")


def test_one_request_is_explained_in_the_words_of_the_api(page: playwright.Page, fleet: Fleet) -> None:
    """Whatever the recorder says: the answer is made up, the page is real."""
    said = {"cause": "queue", "lines": ["waited 12 ms for <b>an</b> instance", "would have been in time on cpu-2"]}
    page.route("**/v1/why/**", lambda route: route.fulfill(json=said))
    opened(page, fleet, "request")
    page.get_by_label("Request id").fill("7f3a/12")
    with page.expect_request(re.compile(r"/v1/why/7f3a%2F12$")):
        page.get_by_role("button", name="Explain").click()
    playwright.expect(page.locator(".lines")).to_have_text("\n".join(said["lines"]))
    page.unroute("**/v1/why/**")


def test_no_page_scrolls_sideways_on_a_phone_and_none_asks_another_host(page: playwright.Page, fleet: Fleet) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for name in PAGES:
        opened(page, fleet, name)
        page.wait_for_timeout(1200)
        wide = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert wide[0] <= wide[1], name
    ours = {urlsplit(fleet.console).netloc}
    assert {urlsplit(url).netloc for url in fleet.asked if not url.startswith("data:")} == ours


def test_keys_and_themes(page: playwright.Page, fleet: Fleet) -> None:
    expect = playwright.expect
    opened(page, fleet)
    # The first thing that Tab reaches leads past the navigation.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent.trim()") == "Skip to the content"
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Shortcuts")).to_have_count(0)
    for key, path in (("l", "latency"), ("r", "rollouts"), ("e", "events"), ("f", "")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page).to_have_url(fleet.console + path)
        expect(page.locator('[data-live="connection"]')).to_have_text("live", timeout=PATIENCE)
    colors = set()
    for scheme, presses in itertools.product(("light", "dark"), range(3)):
        page.emulate_media(color_scheme=scheme)
        page.keyboard.press("t")
        theme = page.evaluate("document.documentElement.dataset.theme")
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        colors.add((scheme if theme == "auto" else theme, color))
        assert theme == ("light", "dark", "auto")[presses]
    assert len(colors) == 2
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, a, input, select")]
        .filter((each) => each.offsetParent && !(each.getAttribute("aria-label") || each.textContent.trim()
          || each.labels?.length)).length"""
    )
    assert unnamed == 0


def test_a_browser_that_slept_is_live_again(page: playwright.Page, fleet: Fleet) -> None:
    opened(page, fleet)
    session = page.context.new_cdp_session(page)
    session.send("Page.setWebLifecycleState", {"state": "frozen"})
    page.wait_for_timeout(1500)
    session.send("Page.setWebLifecycleState", {"state": "active"})
    playwright.expect(page.locator('[data-live="connection"]')).to_have_text("live", timeout=PATIENCE)
    seen = page.locator("#main").inner_text()
    assert "Workers" in seen


def test_pages_of_other_sites_reach_neither_the_stream_nor_the_socket(fleet: Fleet) -> None:
    foreign = {"origin": "http://evil.example"}
    for path in ("/console/", "/console/live", "/console/_nicegui_ws/socket.io/?EIO=4&transport=polling"):
        assert fleet.api.get(path, headers=foreign).status_code == 403
    upgrade = {
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    path = "/console/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    assert fleet.api.get(path, headers={**upgrade, **foreign}).status_code == 403


def test_files_are_where_the_page_says(fleet: Fleet) -> None:
    page = fleet.api.get("/console/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    for path in re.findall(r'(?:src|href)="(/console/[^"]+\.(?:js|css))"', page.text):
        assert fleet.api.get(path).status_code == 200, path
