"""The report of ``bench.gpu.parallel``: ratios round by round, and whether the promise is kept."""

from __future__ import annotations

from typing import Any

from bench.gpu.parallel.__main__ import PLAIN, RANKS, report


def figure(number: int, model: str, in_flight: int, rate: float, median_us: float, problem: str = "") -> dict[str, Any]:
    return {
        "round": number,
        "model": model,
        "in_flight": in_flight,
        "requests_per_second": rate,
        "p50_us": median_us,
        "problem": problem,
    }


def pairs(in_flight: int, *shares: float) -> list[dict[str, Any]]:
    return [
        each
        for number, share in enumerate(shares)
        for each in (
            figure(number, PLAIN, in_flight, 1000, 500),
            figure(number, RANKS, in_flight, 1000 * share, 500 / share),
        )
    ]


def test_the_median_of_the_rounds_is_judged() -> None:
    text, kept = report(pairs(1, 0.99, 1.0, 0.98) + pairs(256, 0.90, 0.96, 0.97), [1, 256], "cuda")
    assert kept
    assert "1 in flight, speed of one request (median): 99.0% of the plain backend (98.0%–100.0%)" in text
    assert "256 in flight, requests/s: 96.0% of the plain backend (90.0%–97.0%), promised 95%" in text
    assert not report(pairs(1, 0.9) + pairs(256, 1.0), [1, 256], "cuda")[1]
    assert report(pairs(1, 0.9) + pairs(256, 1.0), [1, 256], "cpu")[1]


def test_figures_that_do_not_count_are_not_judged() -> None:
    failed = [{**each, "problem": "wrong answers"} if each["model"] == RANKS else each for each in pairs(256, 1.0)]
    text, kept = report(pairs(1, 1.0) + failed, [1, 256], "cuda")
    assert not kept
    assert "256 in flight: NOT MEASURED" in text
