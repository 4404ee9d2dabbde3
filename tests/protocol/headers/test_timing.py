"""Server-Timing, written, read back, and read from others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.protocol.headers import orca, timing
from isochrone.protocol.messages import InferRequest, Plan

MS = 1_000_000


def request_with_marks() -> InferRequest:
    request = InferRequest(Plan("m", "1", (), None), "", {}, 1_000 * MS)
    request.enqueued = request.arrived + 1 * MS
    request.dispatched = request.enqueued + 2 * MS
    request.compute_start = request.dispatched + 1 * MS
    request.infer_start = request.dispatched + 3 * MS
    request.infer_end = request.infer_start + 4_500_400
    request.compute_end = request.infer_end + 10
    return request


def test_server_timing_tells_each_stage_in_milliseconds() -> None:
    request = request_with_marks()
    value = timing.server_timing(request, request.infer_end + 6 * MS)
    assert value == (b"dispatch;dur=1.000, queue;dur=2.000, batch;dur=3.000, compute;dur=4.500, serialise;dur=6.000")


def test_stages_a_request_never_came_to_are_left_out() -> None:
    request = request_with_marks()
    request.compute_start = request.infer_start = request.infer_end = request.compute_end = 0
    assert list(timing.parse_server_timing(timing.server_timing(request, 2_000 * MS))) == ["dispatch", "queue"]
    request.dispatched = 0
    assert list(timing.parse_server_timing(timing.server_timing(request, 2_000 * MS))) == ["dispatch"]


def test_a_gateway_tells_its_own_part_in_front() -> None:
    fields = ((b"content-type", b"text/plain"), (b"server-timing", b"queue;dur=1.000, compute;dur=4.500"))
    assert timing.through_gateway(fields, 7 * MS) == (
        (b"content-type", b"text/plain"),
        (b"server-timing", b"gateway;dur=1.500, queue;dur=1.000, compute;dur=4.500"),
    )
    # Two clocks: never less than nothing.
    assert timing.through_gateway(fields, 2 * MS)[1][1].startswith(b"gateway;dur=0.000, queue")


def test_steps_of_an_ensemble_are_told_and_are_no_time_of_their_own() -> None:
    class Timed(InferRequest):
        __slots__ = ("steps",)

        def note_step(self, model: str, nanoseconds: int) -> None:
            timing.note_step(self, model, nanoseconds)

    plain = request_with_marks()
    request = Timed(plain.plan, "", {}, plain.arrived)
    for mark in ("enqueued", "dispatched", "compute_start", "infer_start", "infer_end", "compute_end"):
        setattr(request, mark, getattr(plain, mark))
    for model in ("first", "a b;c, ü", "first"):
        request.note_step(model, MS)
    value = timing.server_timing(request, request.infer_end)
    stages = timing.parse_server_timing(value)
    assert [timing.step_of(stage) for stage in stages][-3:] == ["first", "a b;c, ü", "first"]
    assert {stage: stages[stage] for stage in stages if timing.step_of(stage)} == {
        "step1.first": 1.0,
        "step2.a%20b%3Bc%2C%20%C3%BC": 1.0,
        "step3.first": 1.0,
    }
    # Parts of compute: a gateway's own time is what all stages, without them, do not account for.
    (told,) = timing.through_gateway(((b"server-timing", value),), 12 * MS)
    assert told[1].startswith(b"gateway;dur=1.500, dispatch;dur=1.000")
    for _ in range(100):
        request.note_step("first", MS)
    assert len(timing.parse_server_timing(timing.server_timing(request, request.infer_end))) == 5 + 32


def test_of_a_server_that_tells_no_stages_a_gateway_tells_the_whole() -> None:
    assert timing.through_gateway((), 7 * MS) == ((b"server-timing", b"upstream;dur=7.000"),)


@settings(deadline=None)
@given(st.lists(st.integers(0, 100_000_000_000), min_size=6, max_size=6))
def test_server_timing_reads_back_and_adds_up(durations: list[int]) -> None:
    dispatch, queue, wait, compute, split, rest = durations
    request = InferRequest(Plan("m", "1", (), None), "", {}, 10**15)
    request.enqueued = request.arrived + dispatch
    request.dispatched = request.enqueued + queue
    request.compute_start = request.infer_start = request.dispatched + wait
    request.infer_end = request.infer_start + compute
    request.compute_end = request.infer_end + split
    now = request.compute_end + rest
    read = timing.parse_server_timing(timing.server_timing(request, now))
    assert list(read) == ["dispatch", "queue", "batch", "compute", "serialise"]
    assert read["queue"] == pytest.approx(queue / MS, abs=0.000_51)
    assert sum(read.values()) == pytest.approx((now - request.arrived) / MS, abs=0.003)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", {}),
        (b"miss", {"miss": 0.0}),
        (b"db;dur=53, app;dur=47.2", {"db": 53.0, "app": 47.2}),
        (b'cache;desc="Cache, ;dur=9 \\" Read";dur=23.2', {"cache": 23.2}),
        (b' a ; DUR = 1 ,b;dur="2.5"', {"a": 1.0, "b": 2.5}),
        (b"a;dur=1, a;dur=2", {"a": 1.0}),
        (b"a;dur=-5, b;dur=-0, c;dur=2", {"a": 0.0, "b": 0.0, "c": 2.0}),
        (b"a;dur=1;dur=2", {"a": 1.0}),
        (b"a;dur=x, b;dur=nan, c;dur=inf, d;dur=1", {"a": 0.0, "b": 0.0, "c": 0.0, "d": 1.0}),
        (b", , a;dur=1, \xff\xff, =;, b;dur=2,", {"a": 1.0, "b": 2.0}),
        ('a;desc="never closed, b;dur=2', {"a": 0.0, "b": 2.0}),
    ],
)
def test_server_timing_of_others_is_read(value: bytes | str, expected: dict[str, float]) -> None:
    assert timing.parse_server_timing(value) == expected


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_can_be_read_as_server_timing(value: bytes) -> None:
    assert all(math.isfinite(duration) for duration in timing.parse_server_timing(value).values())


def test_header_names_are_lower_case_as_http2_wants_them() -> None:
    names = (
        timing.TIMING_HEADER,
        timing.SERVER_TIMING_HEADER,
        orca.ORCA_FORMAT_HEADER,
        orca.ORCA_HEADER,
        orca.ORCA_BINARY_HEADER,
    )
    assert all(name == name.lower() for name in names)
