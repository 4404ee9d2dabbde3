"""What the console's scripts draw in real Chromium, of messages that the test sends: parts that a reader opened, names
that JavaScript knows, gaps in the stream, a stream that is silent, tokens that no header can carry."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from isochrone.console.places import ASSETS, ASSETS_DIRECTORY

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")

pytestmark = [pytest.mark.peers, pytest.mark.skipif(CHROMIUM is None, reason="no chromium: scripts/setup_peers.sh")]

SITE = "http://console.test"
#: A stream whose messages the test sends; the page's clock is the test's too.
PAGE = """<!doctype html><body><div id=main>
<div data-live=connection></div><div data-live=rollouts></div><div data-live=waterfall></div>
<div data-live=chooser></div><div data-live=percentiles></div><div data-live=heat-map></div>
<div data-live=models></div><div data-live=toast></div></div>
<script>
window.streams = [];
window.EventSource = class {
  static CLOSED = 2;
  constructor() { this.readyState = 1; this.heard = {}; streams.push(this); }
  addEventListener(kind, listener) { this.heard[kind] = listener; }
  close() { this.readyState = 2; }
};
window.tell = (kind, text) => streams.at(-1).heard[kind]({ data: text });
</script><script type=module src="/console/assets/console.js"></script>"""


class Site:
    """The page, and what it asked for."""

    def __init__(self, page: playwright.Page) -> None:
        self.page = page
        self.histories: list[dict[str, list[str]]] = []
        self.status = 200
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.route("**/*", self._answer)
        page.clock.install(time=1_000_000)
        page.goto(f"{SITE}/console/")
        page.wait_for_function("() => streams.length === 1")

    def _answer(self, route: playwright.Route) -> None:
        url = urlsplit(route.request.url)
        if url.path == "/console/":
            route.fulfill(body=PAGE, content_type="text/html")
        elif url.path.startswith(f"{ASSETS}/"):
            body = (ASSETS_DIRECTORY / url.path.rpartition("/")[2]).read_text()
            route.fulfill(body=body, content_type="text/javascript")
        elif url.path == "/console/history":
            asked = parse_qs(url.query, keep_blank_values=True)
            self.histories.append(asked)
            route.fulfill(status=self.status, json=history(asked["model"][0], self.now))
        else:
            route.fulfill(json={"paths": {}, "needs_token": True, "may_change": False})

    now = 1000

    def tell(self, kind: str, message: dict[str, Any]) -> None:
        # As text: on another way, a key "__proto__" would be lost.
        self.page.evaluate("([kind, text]) => tell(kind, text)", [kind, json.dumps(message)])

    def second(self, at: int, *names: str) -> None:
        self.now = at
        self.tell("second", {"at": at, "workers": {}, "gateways": {}, "models": {each: figures() for each in names}})

    def text(self, part: str) -> str:
        return str(self.page.locator(f'[data-live="{part}"]').inner_text())


def figures() -> dict[str, Any]:
    shown = {"rate": 10, "p50": 1, "p95": 2, "p99": 3, "missed": 0, "failed": 0, "rejected": 0}
    fall = {"budget_ms": 0, "mean_ms": 1, "segments": []}
    return {"shown": shown, "waterfall": fall, "point": shown, "heat": {"5": 3}}


def history(model: str, now: int) -> dict[str, Any]:
    at = list(range(now - 10, now + 1))
    columns = {name: [1.0] * len(at) for name in ("rate", "p50", "p95", "p99", "missed")}
    heat = {"bounds_ms": [2.0**number for number in range(20)], "columns": [{"5": 1}] * len(at)}
    return {"model": model, "seconds": 300, "step": 1, "at": at, "heat": heat, **columns}


def fleet(*models: str, rollouts: int = 0, note: str = "") -> dict[str, Any]:
    over = {"is_over": True, "state": "done", "summary": "", "kind": "rollout", "by": "x", "at": 5, "note": note}
    return {
        "fleet": "plant",
        "faults": [],
        "map": {
            "tiers": [],
            "gateways": [],
            "models": [{"name": name, "stages": [], "deadline_ms": 0, "state": "serving"} for name in models],
        },
        "rollouts": [{**over, "identity": f"r{number}", "steps": [], "verdicts": []} for number in range(rollouts)],
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def site(browser: playwright.Browser) -> Iterator[Site]:
    context = browser.new_context()
    yield Site(context.new_page())
    context.close()


def test_what_a_reader_opened_stays_open(site: Site) -> None:
    site.tell("fleet", fleet("m", rollouts=2))
    first, second = (site.page.locator(f"details[data-rollout=r{number}]") for number in range(2))
    second.evaluate("each => { each.open = true; each.marked = true; }")
    site.second(1000, "m")
    assert second.evaluate("each => [each.open, each.marked === true]") == [True, True], "nothing has changed"
    site.tell("fleet", fleet("m", rollouts=2, note="new"))
    assert second.evaluate("each => [each.open, each.marked === true]") == [True, False], "drawn anew"
    assert not first.evaluate("each => each.open")
    assert site.errors == []


def test_a_message_that_is_said_twice_is_seen_twice(site: Site) -> None:
    for _ in range(2):
        site.page.evaluate("() => isochrone.useToken('', '')")
        site.page.wait_for_function("() => document.querySelector('[data-live=toast]').innerText === 'Read-only.'")
        site.page.clock.run_for(7000)
        assert site.text("toast") == ""


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString"])
def test_models_may_have_names_that_javascript_knows(site: Site, name: str) -> None:
    site.tell("fleet", fleet(name, "m"))
    site.second(1000, "m", "")
    assert "m 10/s" in site.text("waterfall")
    assert name not in site.text("waterfall"), "it had no request"
    assert name in site.text("models")
    site.second(1001, "m", "", name)
    assert name in site.text("waterfall")
    assert site.errors == []


def test_a_part_that_fails_keeps_no_other_from_being_drawn(site: Site) -> None:
    broken = fleet("m")
    broken["rollouts"] = None
    site.tell("fleet", broken)
    assert "m" in site.text("models")
    assert any("rollouts" in each for each in site.errors)


def test_a_gap_is_asked_for_and_old_columns_go(site: Site) -> None:
    site.tell("fleet", fleet("m"))
    site.second(1000, "m")
    site.page.locator('[data-live="percentiles"] svg').wait_for()
    assert len(site.histories) == 1
    for at in (1001, 1002, 1004):
        site.second(at, "m")
    assert len(site.histories) == 1
    site.page.clock.run_for(4000)
    site.second(1200, "m")
    site.page.wait_for_function("() => document.querySelector('[data-live=percentiles] svg')")
    site.second(1201, "m")
    assert len(site.histories) == 2
    assert site.errors == []


def test_old_columns_go_also_if_there_are_few(site: Site) -> None:
    site.tell("fleet", fleet("m"))
    site.second(1000, "m")
    site.page.locator('[data-live="percentiles"] svg').wait_for()
    site.status = 503
    site.page.clock.run_for(4000)
    site.second(1295, "m")
    site.page.wait_for_timeout(300)
    site.second(1297, "m")
    line = site.page.locator('[data-live="percentiles"] path.p50').get_attribute("d")
    assert min(float(each.split()[0]) for each in re.split("[ML]", line)[1:]) >= 52, "left of the axis"


def test_without_an_answer_a_history_is_asked_for_once_a_second(site: Site) -> None:
    site.status = 404
    site.tell("fleet", fleet("m"))
    for at in (1000, 1001):
        site.second(at, "m")
        site.page.wait_for_timeout(300)
    assert 1 <= len(site.histories) <= 3


def test_a_silent_stream_is_opened_again(site: Site) -> None:
    site.second(1000, "m")
    assert site.text("connection") == "live"
    site.page.clock.run_for(7000)
    assert site.text("connection") == "reconnecting"
    assert site.page.evaluate("() => streams.length") == 1
    site.page.clock.run_for(10_000)
    assert site.page.evaluate("() => streams.map((each) => each.readyState)") == [2, 1]
    site.second(1017, "m")
    assert site.text("connection") == "live"


@pytest.mark.parametrize("token", ["geheim-schlüssel", "пароль-пароль", "two words", "secret\u2026"])
def test_a_token_that_no_header_can_carry_is_refused_with_the_cause(site: Site, token: str) -> None:
    site.page.evaluate("token => isochrone.useToken('me', token)", token)
    assert "characters that no token can have" in site.text("toast")
    assert site.page.evaluate("() => sessionStorage.length") == 0
    site.page.evaluate("() => isochrone.useToken('me', 'secret-token')")
    site.page.wait_for_function("() => sessionStorage.getItem('isochrone-token') === 'secret-token'")
