"""A gateway's page of figures: what the metrics page counts, and the load reports; bounded, and read in steps."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from offline import add_members

from isochrone.gateway.control_calls.figures_page import FiguresPages
from isochrone.gateway.figures import page as pages
from isochrone.gateway.figures import reading
from isochrone.gateway.figures.page import FiguresPage, decode, encode
from isochrone.gateway.figures.reading import FiguresReader
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.housekeeping import finished
from isochrone.gateway.latencies.durations import bucket_of
from isochrone.gateway.latencies.version_durations import DEADLINE_EXCEEDED, REJECTED
from isochrone.gateway.replicas import EndpointReport, LoadReport
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Exchange, Head

SECOND = 1_000_000_000
START = 50 * SECOND


class Scene:
    """A gateway with two workers that serve m in version 1."""

    def __init__(self) -> None:
        self.now = START
        self.gateway = Gateway(GatewayRules(), WireLimits(), seed=1, clock=lambda: self.now)
        add_members(self.gateway.fleet, {"m": {"1": ""}}, {"m": {"1": ""}})
        self.served = self.gateway.fleet.model("m")
        self.version = self.served.replica_set("1")
        self.reader = FiguresReader(self.gateway)

    def page(self) -> FiguresPage:
        return decode(encode(finished(self.reader.read())))


def run(scenario: Any) -> None:
    async def course() -> None:
        scenario(Scene())

    asyncio.run(course())


def test_counts_are_those_of_the_metrics_page() -> None:
    def scenario(scene: Scene) -> None:
        assert scene.page().models == (), "without requests"
        served, durations = scene.served, scene.version.durations
        served.requests, served.retries, served.hedges = 7, 2, 1
        served.rejections.update({"quota": 3, "quarantined": 1, "queue_full": 9, "not_found": 5, "worker": 2})
        for whole, own in ((1_000_000, 10_000), (3_000_000, 30_000)):
            durations.new_durations.add(whole)
            durations.new_shares.add(own)
        durations.add(REJECTED, bucket_of(1000), 1000)
        durations.add(DEADLINE_EXCEEDED, bucket_of(SECOND), SECOND)
        scene.now += 5 * SECOND
        page = scene.page()
        assert page.uptime_ms == 5000
        (model,) = page.models
        assert (model.model, model.requests, model.retries, model.hedges, model.excused) == ("m", 7, 2, 1, 4)
        (version,) = model.versions
        assert (version.version, version.outcomes) == ("1", (2, 1, 1, 0, 0))
        assert version.durations == {bucket_of(1_000_000): 1, bucket_of(3_000_000): 1}
        assert (version.sum_ns, version.own_ns, version.own_count) == (4_000_000, 40_000, 2)
        assert scene.page() == page, "nothing is counted by asking"

    run(scenario)


def test_a_start_has_an_incarnation_of_its_own() -> None:
    def scenario(scene: Scene) -> None:
        assert (
            scene.page().incarnation
            == scene.page().incarnation
            != finished(FiguresReader(scene.gateway).read()).incarnation
        )

    run(scenario)


def test_workers_by_their_load_reports() -> None:
    def scenario(scene: Scene) -> None:
        scene.served.requests = 1
        scene.version.durations.new_durations.add(1000)
        scene.version.durations.new_shares.add(10)
        one, other = scene.version.replicas.values()
        one.reported(LoadReport(9, 4, wait_ns=700, run_ns=300), scene.now)
        other.reported(LoadReport(1, 0), scene.now - 3 * SECOND)
        one.endpoint.in_flight = 2
        other.endpoint.ejected_until = scene.now + SECOND
        other.endpoint.healthy = False
        page = scene.page()
        workers = {each.address: each for each in page.workers}
        loaded, silent = workers[one.endpoint.address], workers[other.endpoint.address]
        assert (loaded.own_in_flight, loaded.in_flight, loaded.queued, loaded.wait_ns, loaded.age_ms) == (
            2,
            9,
            4,
            700,
            0,
        )
        assert (silent.in_flight, silent.age_ms, silent.is_ejected, silent.is_healthy) == (-1, -1, True, False)
        version = page.models[0].versions[0]
        assert (version.queue_ns, version.queue_count, version.compute_ns, version.compute_count) == (700, 1, 300, 1)
        # A probe's answer is newer than that of a request.
        scene.now += SECOND
        report = EndpointReport(one.endpoint, LoadReport(3, 0), scene.now)
        one.endpoint.last_report, one.endpoint.last_report_at = report, scene.now
        probed = {each.address: each for each in scene.page().workers}[one.endpoint.address]
        assert (probed.in_flight, probed.queued, probed.wait_ns) == (3, 0, 0)
        assert one.report.in_flight == 9, "reading changes nothing"

    run(scenario)


def test_the_page_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_MODELS", 1)
    monkeypatch.setattr(reading, "MOST_WORKERS", 1)

    def scenario(scene: Scene) -> None:
        add_members(scene.gateway.fleet, {"m": {"1": ""}, "n": {"1": ""}}, {})
        for name, requests in (("m", 5), ("n", 9)):
            scene.gateway.fleet.model(name).requests = requests
        page = scene.page()
        assert [each.model for each in page.models] == ["n"]
        assert (page.left_out, len(page.workers), page.left_out_workers) == (1, 1, 1)

    run(scenario)


class Caller:
    status = 0
    body = b""

    def respond(self, status: int, headers: Any, body: Any) -> None:
        self.status, self.body = status, b"".join(map(bytes, body))


class Asked:
    def __init__(self, method: bytes, target: bytes) -> None:
        self.method, self.target = method, target


def asked(method: bytes, target: bytes) -> Caller | None:
    async def course() -> Caller | None:
        application = FiguresPages(Scene().gateway)
        route = application.route(cast("Head", Asked(method, target)))
        if route is None:
            return None
        caller = Caller()
        route.handle(cast("Exchange", caller))
        await application._tasks.finish()
        return caller

    return asyncio.run(course())


def test_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = asked(b"GET", pages.FIGURES_PATH.encode() + b"?x=1")
    assert answered is not None
    assert answered.status == 200
    assert len(decode(answered.body).workers) == 2
    assert asked(b"GET", b"/metrics") is None
    refused = asked(b"POST", pages.FIGURES_PATH.encode())
    assert refused is not None
    assert refused.status == 405

    def fails(self: FiguresReader) -> Any:
        raise RuntimeError("boom")

    monkeypatch.setattr(FiguresReader, "read", fails)
    failed = asked(b"GET", pages.FIGURES_PATH.encode())
    assert failed is not None
    assert failed.status == 500
