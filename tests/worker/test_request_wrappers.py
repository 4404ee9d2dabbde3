"""Requests that stand in for others: what they hand over, and the line a logged one leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queued_requests import RecordedRequest, plan_of, rows_of
from structlog.testing import capture_logs

from isochrone.clock import MICROSECOND
from isochrone.errors import ModelFailed
from isochrone.worker.request_wrappers import LoggedRequest, LoggedStream, RequestWrapper


class Version:
    model_version = "7"


class Caller(RecordedRequest):
    is_congested = True

    def when_writable(self, callback: Callable[[], None]) -> None:
        self.answers.append(callback)


def caller() -> Caller:
    return Caller(plan_of(2), {"x": rows_of(1, 2)}, arrived=5 * MICROSECOND, request_id="abc")


def ran(wrapper: RequestWrapper) -> None:
    """What a version and its runner leave on a request."""
    wrapper.plan = plan_of(2)
    wrapper.served_by = Version()
    wrapper.enqueued, wrapper.dispatched = 10 * MICROSECOND, 40 * MICROSECOND
    wrapper.compute_start = wrapper.infer_start = 50 * MICROSECOND
    wrapper.infer_end = wrapper.compute_end = 120 * MICROSECOND


def line_of(lines: list[Any]) -> Any:
    (line,) = lines
    assert (line["event"], line["log_level"], line["verbosity"]) == ("request", "debug", 2)
    return line


def test_an_answer_and_all_that_was_learnt_reach_the_caller() -> None:
    original = caller()
    logged = LoggedRequest(original)
    ran(logged)
    with capture_logs() as lines:
        logged.complete({"y": rows_of(3, 4)})
    assert original.answers[0]["y"].shape == (2, 1)
    assert (original.plan, original.served_by) == (logged.plan, logged.served_by)
    assert (original.dispatched, original.compute_end) == (40 * MICROSECOND, 120 * MICROSECOND)
    line = line_of(lines)
    assert (line["model"], line["version"], line["id"], line["rows"], line["outcome"]) == (
        "m",
        "7",
        "abc",
        2,
        "answered",
    )
    assert (line["queue_us"], line["compute_us"]) == (30, 70)


def test_a_failure_and_a_caller_who_has_gone_have_a_line_too() -> None:
    with capture_logs() as lines:
        original = caller()
        LoggedRequest(original).fail(ModelFailed("it raised"))
    assert isinstance(original.answers[0], ModelFailed)
    assert (line_of(lines)["outcome"], line_of(lines)["error"]) == ("model_failed", "it raised")
    with capture_logs() as lines:
        original = caller()
        LoggedRequest(original).dropped()
    assert original.answers == ["dropped"]
    assert line_of(lines)["outcome"] == "cancelled"


def test_leaving_is_seen_from_both_sides() -> None:
    original = caller()
    logged = LoggedRequest(original)
    assert not logged.cancelled
    original.cancelled = True
    assert logged.cancelled


def test_a_stream_counts_its_responses_and_passes_on_that_nobody_reads() -> None:
    original = caller()
    logged = LoggedStream(original)
    assert logged.takes_many
    ran(logged)
    with capture_logs() as lines:
        logged.emit({"y": rows_of(1)})
        assert original.served_by is logged.served_by
        logged.emit({"y": rows_of(2)})
        assert logged.is_congested
        logged.when_writable(original.finish)
        original.answers.pop()()
        assert not lines
        logged.finish()
    assert original.answers[2:] == ["finished", "finished"]
    assert (line_of(lines)["outcome"], line_of(lines)["responses"]) == ("answered", 2)
