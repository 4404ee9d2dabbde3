"""Reports: one whole page for any runs, which loads nothing and escapes what servers say."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_runs import a_run, latencies_run, one_server_queue

from isochrone.bench.report.page import report_page, write_report
from isochrone.bench.report.scales import linear_scale, log_scale, percentile_scale, time_scale
from isochrone.bench.results.outcomes import FAILED, LATE, OK, REJECTED, GeneratorUse, Run
from isochrone.clock import MILLISECOND
from isochrone.errors import FlagError


class Balanced(HTMLParser):
    """Collects elements, and fails where one is not closed."""

    VOID: ClassVar = {"meta", "br"}

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def queue(seed: int, capacity: float = 1000) -> Run:
    return one_server_queue(np.random.default_rng(seed), 700, capacity, 10)


def mixed_run() -> Run:
    random = np.random.default_rng(9)
    outcome = random.choice([OK, LATE, REJECTED, FAILED], 3_000, p=[0.9, 0.04, 0.03, 0.03])
    intended = np.sort(random.integers(0, 10**10, 3_000))
    return a_run(
        intended,
        intended + random.integers(MILLISECOND, 40 * MILLISECOND, 3_000),
        sent_ns=intended + 5_000,
        first_ns=intended + MILLISECOND // 2,
        outcome=outcome,
        kind=random.integers(0, 2, 3_000),
        kinds=("small", "large"),
        errors={"HTTP 500: <b>out of memory</b>": 90, "HTTP 429": 90},
        generators=(GeneratorUse(0.99, 5_000, 5_000, 5_000),),
    )


def test_one_run_has_every_plot() -> None:
    page = report_page([mixed_run()])
    parsed = Balanced(page)
    captions = " ".join(parsed.text)
    for part in (
        "Latency over time",
        "Latency by percentile",
        "latencies over time",
        "requests per second",
        "unanswered",
    ):
        assert part in captions
    assert "The generator was the bottleneck" in captions
    assert "small" in captions
    assert "first token" in captions
    assert "Comparison" not in captions


def test_two_runs_are_compared() -> None:
    captions = " ".join(Balanced(report_page([queue(1), queue(2, capacity=850)])).text)
    assert "B measured by A" in captions
    assert "slower" in captions


def test_runs_at_several_rates_show_latency_by_rate_and_no_comparison() -> None:
    runs = [one_server_queue(np.random.default_rng(3), rate, 1000, 5) for rate in (200, 400, 800)]
    captions = " ".join(Balanced(report_page(runs)).text)
    assert "Latency by rate" in captions
    assert "Comparison" not in captions


def test_the_page_loads_nothing_and_escapes_what_others_wrote() -> None:
    run = latencies_run(
        [MILLISECOND] * 10,
        target='http://x/"><script>alert(1)</script>',
        kinds=("<img src=x>",),
        errors={"<script>": 3},
    )
    page = report_page([run])
    parsed = Balanced(page)
    assert not {"script", "img", "link", "iframe", "object"} & set(parsed.tags)
    assert not {"src", "href", "onload", "srcset"} & {name for name, _ in parsed.attributes}
    assert "url(" not in page
    assert "@import" not in page


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 10**11), st.integers(0, 4)), max_size=40),
        min_size=1,
        max_size=3,
    )
)
def test_any_runs_have_a_whole_page(runs: list[list[tuple[int, int, int]]]) -> None:
    given_runs = []
    for requests in runs:
        intended = np.array([each[0] for each in requests], dtype=np.int64)
        latency = np.array([each[1] for each in requests], dtype=np.int64)
        outcome = np.array([each[2] for each in requests], dtype=np.uint8)
        given_runs.append(a_run(intended, intended + latency, outcome=outcome))
    page = report_page(given_runs)
    Balanced(page)
    numbers = re.findall(r'(?:points|d|cx|cy|x|y)="([^"]*)"', page)
    assert not any("nan" in each or "inf" in each for each in numbers)


def test_a_run_without_length() -> None:
    Balanced(report_page([latencies_run([], seconds=0), latencies_run([5], seconds=0)]))


def test_the_file_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, [queue(1)])
    assert path.read_text(encoding="utf-8") == report_page([queue(1)])
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(FlagError, match="--report"):
        write_report(tmp_path / "missing" / "report.html", [queue(1)])
    (tmp_path / "folder").mkdir()
    with pytest.raises(FlagError, match="--report"):
        write_report(tmp_path / "folder", [queue(1)])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "report.html"]
    with pytest.raises(FlagError, match="at least one run"):
        write_report(path, [])


@given(st.floats(1e-3, 1e12), st.floats(1, 1e9))
def test_scales_keep_their_order_and_label_something(low: float, factor: float) -> None:
    high = low * factor
    for scale, ends in (
        (log_scale(low, high, str), (low, high)),
        (linear_scale(high, str), (0.0, high)),
        (time_scale(high), (0.0, high)),
    ):
        assert 0 <= scale.place(ends[0]) <= scale.place(ends[1]) <= 1
        assert scale.ticks
        assert all(0 <= scale.place(value) <= 1 for value, _ in scale.ticks)
        assert len(scale.ticks) <= 30


def test_each_nine_has_as_much_room() -> None:
    scale = percentile_scale(1_000_000)
    assert [label for _, label in scale.ticks] == ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]
    assert [scale.place(value) for value in (0, 90, 99, 99.9, 99.99)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert [label for _, label in percentile_scale(500).ticks] == ["0 %", "50 %", "90 %", "99 %"]
