"""Objectives as written, and what a summary shows about them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_runs import a_run, latencies_run

from isochrone.bench.analysis.slo import Verdict, fewest_requests, overall, parse_slo
from isochrone.bench.analysis.summary import Summary, summarize
from isochrone.bench.results.outcomes import FAILED, LATE, OK, REJECTED
from isochrone.clock import MILLISECOND
from isochrone.errors import FlagError


def spread(over: int, total: int, *, value_ms: float = 30, outcome: int = OK) -> Summary:
    """``over`` requests spread evenly over the run; the others take 1 ms."""
    slow = np.zeros(total, dtype=np.bool_)
    slow[np.linspace(0, total - 1, over).astype(int)] = True
    latencies = np.where(slow, int(value_ms * MILLISECOND), MILLISECOND)
    return summarize(latencies_run(latencies, outcome=np.where(slow, outcome, OK)))


def verdict(text: str, summary: Summary) -> Verdict:
    return overall(parse_slo(text).judge(summary))


def test_objectives_as_written() -> None:
    slo = parse_slo(" p99.9 <= 50 ms, errors<0.1%,ttft_p50<200us ,max<2s")
    assert str(slo) == "p99.9<=50ms,errors<0.1%,ttft_p50<200us,max<2s"
    tail, errors, first, highest = slo.objectives
    assert (tail.allowed, tail.limit_ns, tail.allow_equal) == (0.001, 50 * MILLISECOND, True)
    assert (errors.allowed, errors.limit_ns) == (0.001, None)
    assert (first.allowed, first.limit_ns, first.first_token) == (0.5, 200_000, True)
    assert (highest.allowed, highest.limit_ns) == (0, 2_000 * MILLISECOND)


@given(
    st.integers(1, 9999), st.sampled_from(["<", "<="]), st.integers(1, 10**6), st.sampled_from(["ns", "us", "ms", "s"])
)
def test_what_is_parsed_is_written_again(hundredths: int, sign: str, number: int, unit: str) -> None:
    text = f"p{hundredths / 100:g}{sign}{number}{unit}"
    slo = parse_slo(text)
    assert str(slo) == text
    assert slo == parse_slo(str(slo))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "nothing"),
        ("p99", "p99<20ms"),
        ("p99<20", "p99<20ms"),
        ("p99<20%", "a duration such as p99<20ms"),
        ("p99>20ms", "p99<20ms"),
        ("p100<20ms", "max"),
        ("p0<20ms", "above 0"),
        ("p99<0ms", "above 0"),
        ("error<1%", "did you mean 'errors'"),
        ("errors<1ms", "errors<0.1%"),
        ("errors<0%", "errors<=0%"),
        ("errors<100%", "below 100%"),
        ("p99<20ms,p99<30ms", "one objective for p99"),
        ("p99<20ms,", "p99<20ms"),
    ],
)
def test_errors_name_what_to_write(text: str, names: str) -> None:
    with pytest.raises(FlagError) as raised:
        parse_slo(text)
    assert "--slo" in str(raised.value)
    assert names in str(raised.value)


@given(st.text(alphabet="p9.0<=>%msuµ,erots_ -x", max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse_slo(text)
    except FlagError:
        pass


def test_a_verdict_needs_the_interval_on_one_side_of_the_limit() -> None:
    assert verdict("p99<20ms", spread(50, 10_000)) is Verdict.MET
    assert verdict("p99<20ms", spread(100, 10_000)) is Verdict.UNCLEAR
    assert verdict("p99<20ms", spread(150, 10_000)) is Verdict.MISSED
    assert verdict("p99<20ms,p50<2ms", spread(150, 10_000)) is Verdict.MISSED
    assert verdict("p99<20ms,errors<1%", spread(100, 10_000)) is Verdict.UNCLEAR


def test_one_pause_is_not_evidence_of_many_slow_requests() -> None:
    latencies = np.full(10_000, MILLISECOND)
    latencies[5_000:5_150] = 30 * MILLISECOND
    assert verdict("p99<20ms", summarize(latencies_run(latencies))) is Verdict.UNCLEAR


@pytest.mark.parametrize("outcome", [REJECTED, FAILED])
def test_requests_without_an_answer_miss_every_percentile(outcome: int) -> None:
    summary = spread(300, 10_000, value_ms=0.1, outcome=outcome)
    assert verdict("p99<20ms", summary) is Verdict.MISSED
    assert verdict("p95<20ms", summary) is Verdict.MET
    assert verdict("max<1s", summary) is Verdict.MISSED
    assert verdict("errors<1%", summary) is Verdict.MISSED
    assert verdict("failed<1%", summary) is (Verdict.MISSED if outcome == FAILED else Verdict.MET)


def test_late_answers_are_no_errors() -> None:
    summary = spread(300, 10_000, outcome=LATE)
    assert verdict("errors<1%", summary) is Verdict.MET
    assert verdict("late<1%", summary) is Verdict.MISSED


def test_a_limit_that_is_reached() -> None:
    summary = spread(5_000, 10_000, value_ms=20)
    assert verdict("p99<20ms", summary) is Verdict.MISSED
    assert verdict("p99<=20ms", summary) is Verdict.MET


def test_first_tokens() -> None:
    intended = np.arange(1_000) * MILLISECOND
    run = a_run(intended, intended + 9 * MILLISECOND, first_ns=intended + 3 * MILLISECOND)
    assert verdict("ttft_p99<4ms", summarize(run)) is Verdict.MET
    assert verdict("ttft_p99<2ms", summarize(run)) is Verdict.MISSED
    without = a_run(intended, intended + 9 * MILLISECOND)
    assert verdict("ttft_p99<4ms", summarize(without)) is Verdict.MISSED


@pytest.mark.parametrize(("text", "allowed"), [("p99<20ms", 0.01), ("errors<0.1%", 0.001)])
def test_the_fewest_requests_are_enough_and_one_less_is_not(text: str, allowed: float) -> None:
    fewest = fewest_requests(allowed)
    assert verdict(text, spread(0, fewest)) is Verdict.MET
    assert verdict(text, spread(0, fewest - 1)) is Verdict.UNCLEAR
    (judgement,) = parse_slo(text).judge(spread(0, fewest - 1))
    assert f"at least {fewest:,} requests" in judgement.sentence


def test_no_request_tells_nothing() -> None:
    assert verdict("p99<20ms,max<1s,errors<=0%", summarize(latencies_run([]))) is Verdict.UNCLEAR


def test_the_sentence_names_counts_and_limit() -> None:
    (judgement,) = parse_slo("p99<20ms").judge(spread(300, 10_000))
    assert judgement.sentence == (
        "p99<20ms missed: 300 of 10,000 requests (3 %) over the limit or without an answer; at most 1 % may be"
    )
