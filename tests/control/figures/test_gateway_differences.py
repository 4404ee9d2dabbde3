"""Differences of gateways' pages: whatever is lost, restarted or forgotten, nothing is counted twice or negatively."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.control.figures.differences import GatewayCounts, added_models
from isochrone.control.figures.frames import COMPUTE, GATEWAY, QUEUE, WORKER, ModelFigures, StageFigures
from isochrone.control.figures.worker_loads import worker_figures
from isochrone.gateway.figures.page import (
    FiguresPage,
    ModelCounts,
    VersionCounts,
    WorkerLoad,
    decode,
    encode,
)

LONG = 10**9


@dataclass
class Process:
    """A gateway process that counts answered requests of one model by version, each in bucket 3."""

    incarnation: str
    answered: dict[str, int] = field(default_factory=dict)

    def page(self, uptime_ms: int = 0, left_out: int = 0) -> FiguresPage:
        versions = tuple(
            VersionCounts(version, (count, 0, 0, 0, 0), {3: count}, 7 * count, 2 * count, count)
            for version, count in self.answered.items()
            if count
        )
        requests = sum(self.answered.values())
        models = (ModelCounts("m", requests, versions=versions),) if requests else ()
        return decode(encode(FiguresPage(self.incarnation, uptime_ms, 0, models, (), left_out)))


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("requests"), st.sampled_from("12"), st.integers(1, 9)),
        st.tuples(st.just("ask"), st.just(""), st.just(0)),
        st.tuples(st.just("lost"), st.just(""), st.just(0)),
        st.tuples(st.just("restart"), st.just(""), st.just(0)),
        st.tuples(st.just("forget"), st.sampled_from("12"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(_steps)
def test_restarts_and_lost_pages(steps: list[tuple[str, str, int]]) -> None:
    """Every request that a page showed is counted once; no count is negative."""
    counts, process, starts = GatewayCounts(), Process("0"), 0
    shown: dict[str, int] = {}
    counted = 0
    expected = 0

    def ask() -> None:
        nonlocal counted, expected
        found = counts.take("g", process.page(), LONG)
        expected += sum(count - shown.get(version, 0) for version, count in process.answered.items())
        shown.clear()
        shown.update(process.answered)
        for each in found.models.values():
            assert min(each.answered, each.sum_ns, *each.durations.values()) >= 0
            assert sum(each.durations.values()) == each.answered
            counted += each.answered
        assert min(found.gateway.requests, found.gateway.own.sum_ns, found.gateway.own.count) >= 0

    for step, version, number in steps:
        if step == "requests":
            process.answered[version] = process.answered.get(version, 0) + number
        elif step == "restart":
            starts += 1
            process = Process(str(starts))
            shown.clear()
        elif step == "forget":
            # What the gateway forgets between two pages is gone, and the version counts from 0.
            ask()
            process.answered.pop(version, None)
            ask()
        elif step == "ask":
            ask()
    ask()
    assert counted == expected


def test_a_gateway_that_was_there_before_counts_from_its_first_page_on() -> None:
    counts, process = GatewayCounts(), Process("a", {"1": 1000})
    first = counts.take("g", process.page(uptime_ms=60_000), watched_ms=500)
    assert (first.gateway.requests, first.models) == (0, {})
    process.answered["1"] += 3
    second = counts.take("g", process.page(uptime_ms=61_000), watched_ms=1500)
    assert (second.gateway.requests, second.models["m", "1"].answered) == (3, 3)


def test_a_gateway_that_started_meanwhile_counts_in_full() -> None:
    found = GatewayCounts().take("g", Process("a", {"1": 5}).page(uptime_ms=900), watched_ms=60_000)
    assert found.models["m", "1"].answered == 5


def test_a_model_that_appears_on_a_page_with_a_limit_is_not_counted_in_full() -> None:
    counts = GatewayCounts()
    assert not counts.take("g", FiguresPage("a", 0, left_out=1), LONG).is_whole
    assert counts.take("g", Process("a", {"1": 500}).page(left_out=1), LONG).models == {}
    assert counts.take("g", Process("a", {"1": 502}).page(left_out=1), LONG).models["m", "1"].answered == 2


def test_stages_and_excuses() -> None:
    version = VersionCounts("1", (4, 1, 0, 0, 0), {0: 4}, 400, 40, 4, 600, 2, 90, 3)
    page = FiguresPage("a", 0, 7, (ModelCounts("m", 5, 1, 2, 1, (version,)),))
    found = GatewayCounts().take("g", page, LONG)
    assert found.models["m", "1"].stages == {
        GATEWAY: StageFigures(40, 4),
        WORKER: StageFigures(360, 4),
        QUEUE: StageFigures(600, 2),
        COMPUTE: StageFigures(90, 3),
    }
    assert found.models["m", ""].excused == 1
    assert (found.gateway.retries, found.gateway.hedges, found.gateway.in_flight) == (1, 2, 7)
    # A stream among them: the worker's share is not known.
    streamed = FiguresPage(
        "a", 0, 0, (ModelCounts("m", 6, versions=(VersionCounts("1", (6, 1, 0, 0, 0), {0: 6}, 500, 45, 5),)),)
    )
    later = GatewayCounts()
    later.take("g", page, LONG)
    assert later.take("g", streamed, LONG).models["m", "1"].stages == {GATEWAY: StageFigures(5, 1)}


@given(st.lists(st.dictionaries(st.sampled_from("ab"), st.integers(0, 9)), min_size=1, max_size=4))
def test_gateways_add_up_in_any_order(pages: list[dict[str, int]]) -> None:
    parts = [{(name, "1"): ModelFigures(name, "1", count) for name, count in page.items()} for page in pages]
    assert added_models(parts) == added_models(reversed(parts)) or not parts
    total = added_models(parts)
    assert sum(each.answered for each in total.values()) == sum(sum(page.values()) for page in pages)


def test_workers_over_gateways() -> None:
    one = WorkerLoad("h:1", "edge", "cpu", own_in_flight=3, in_flight=4, queued=1, wait_ns=50, age_ms=900)
    other = WorkerLoad(
        "h:1",
        "edge",
        "cpu",
        is_healthy=False,
        is_ejected=True,
        own_in_flight=2,
        in_flight=9,
        age_ms=10,
        round_trip_us=700,
    )
    silent = WorkerLoad("h:2", own_in_flight=1)
    found = worker_figures(((one, silent), (other,)), {"h:1": "w1"})
    assert list(found) == ["w1", "h:2"]
    worker = found["w1"]
    assert (worker.in_flight, worker.queued, worker.wait_ns, worker.tier) == (9, 0, 0, "edge")
    assert (worker.is_healthy, worker.is_ejected, worker.round_trip_s) == (False, True, 0.0007)
    assert (found["h:2"].in_flight, found["h:2"].round_trip_s) == (1, None)
