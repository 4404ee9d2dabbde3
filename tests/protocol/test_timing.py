"""Server-Timing and ORCA, written, read back, and read from others."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.errors import InvalidArgument, MalformedRequest
from isochrone.protocol import timing
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


def test_network_in_comes_first_where_it_is_known() -> None:
    request = request_with_marks()
    value = timing.server_timing(request, request.infer_end, network_in_ns=250_000)
    assert value.startswith(b"network-in;dur=0.250, dispatch;dur=1.000, ")


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
@given(st.lists(st.integers(0, 100_000_000_000), min_size=6, max_size=6), st.integers(0, 10**9))
def test_server_timing_reads_back_and_adds_up(durations: list[int], network_in: int) -> None:
    dispatch, queue, wait, compute, split, rest = durations
    request = InferRequest(Plan("m", "1", (), None), "", {}, 10**15)
    request.enqueued = request.arrived + dispatch
    request.dispatched = request.enqueued + queue
    request.compute_start = request.infer_start = request.dispatched + wait
    request.infer_end = request.infer_start + compute
    request.compute_end = request.infer_end + split
    now = request.compute_end + rest
    read = timing.parse_server_timing(timing.server_timing(request, now, network_in))
    assert list(read) == ["network-in", "dispatch", "queue", "batch", "compute", "serialise"]
    assert read["queue"] == pytest.approx(queue / MS, abs=0.000_51)
    assert read.pop("network-in") == pytest.approx(network_in / MS, abs=0.000_51)
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


REPORT = {
    "cpu_utilization": 0.3,
    "mem_utilization": 0.8,
    "rps_fractional": 10.0,
    "eps": 1.0,
    "application_utilization": 1.5,
    "queue_depth": 4.0,
    "utilization.gpu": 0.5,
    "request_cost.tokens": 12.0,
}


def test_orca_forms_are_as_the_specification_shows_them() -> None:
    assert timing.orca_text({"cpu_utilization": 0.3, "eps": 1.0, "depth": 4.0}) == (
        b"TEXT cpu_utilization=0.3, eps=1.0, named_metrics.depth=4.0"
    )
    form, _, text = timing.orca_json(REPORT).partition(b" ")
    assert form == b"JSON"
    assert json.loads(text) == {
        "cpu_utilization": 0.3,
        "mem_utilization": 0.8,
        "rps_fractional": 10.0,
        "eps": 1.0,
        "application_utilization": 1.5,
        "named_metrics": {"queue_depth": 4.0},
        "utilization": {"gpu": 0.5},
        "request_cost": {"tokens": 12.0},
    }
    # The example in the ORCA design document.
    assert (
        base64.b64encode(timing.orca_binary({"cpu_utilization": 0.1, "rps_fractional": 2.0, "foo": 0.1, "bar": 0.2}))
        == b"CZqZmZmZmbk/MQAAAAAAAABAQg4KA2ZvbxGamZmZmZm5P0IOCgNiYXIRmpmZmZmZyT8="
    )


def _orca_message_class() -> Any:
    """OrcaLoadReport as protobuf itself makes it from the published field numbers."""
    double, string = descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE, descriptor_pb2.FieldDescriptorProto.TYPE_STRING
    file = descriptor_pb2.FileDescriptorProto(name="orca_test.proto", package="orca_test", syntax="proto3")
    report = file.message_type.add(name="OrcaLoadReport")
    for name, number in (
        ("cpu_utilization", 1),
        ("mem_utilization", 2),
        ("rps_fractional", 6),
        ("eps", 7),
        ("application_utilization", 9),
    ):
        report.field.add(name=name, number=number, type=double, label=1)
    report.field.add(name="rps", number=3, type=descriptor_pb2.FieldDescriptorProto.TYPE_UINT64, label=1)
    for name, number, entry in (
        ("request_cost", 4, "RequestCostEntry"),
        ("utilization", 5, "UtilizationEntry"),
        ("named_metrics", 8, "NamedMetricsEntry"),
    ):
        nested = report.nested_type.add(name=entry)
        nested.options.map_entry = True
        nested.field.add(name="key", number=1, type=string, label=1)
        nested.field.add(name="value", number=2, type=double, label=1)
        report.field.add(
            name=name,
            number=number,
            type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
            type_name=f".orca_test.OrcaLoadReport.{entry}",
            label=3,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("orca_test.OrcaLoadReport"))


ORCA_MESSAGE = _orca_message_class()


def test_protobuf_reads_what_is_written_here() -> None:
    message = ORCA_MESSAGE.FromString(timing.orca_binary({**REPORT, "é" * 100: 7.0}))
    assert message.cpu_utilization == 0.3
    assert message.application_utilization == 1.5
    assert dict(message.named_metrics) == {"queue_depth": 4.0, "é" * 100: 7.0}
    assert dict(message.utilization) == {"gpu": 0.5}
    assert dict(message.request_cost) == {"tokens": 12.0}


def test_what_protobuf_writes_is_read_here() -> None:
    message = ORCA_MESSAGE(cpu_utilization=0.25, rps=1 << 40, eps=3.0)
    message.named_metrics["depth"] = 8.0
    message.named_metrics["eps"] = 2.0
    message.named_metrics["zero"] = 0.0
    message.request_cost["x"] = 1.0
    assert timing.parse_orca_binary(message.SerializeToString()) == {
        "cpu_utilization": 0.25,
        "eps": 3.0,
        "depth": 8.0,
        "named_metrics.eps": 2.0,
        "zero": 0.0,
        "request_cost.x": 1.0,
    }


_text_names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=",="), min_size=1)
_names = st.one_of(
    st.sampled_from([*REPORT, "utilization", "named_metrics", "eps.", "named_metrics.eps", "utilization."]),
    _text_names.filter(lambda name: not name.startswith("named_metrics.")),
)
_reports = st.dictionaries(_names, st.floats(allow_nan=False, allow_infinity=False), max_size=6)


@settings(deadline=None)
@given(_reports)
def test_a_report_survives_every_form(report: dict[str, float]) -> None:
    assert timing.parse_orca_header(timing.orca_text(report)) == report
    assert timing.parse_orca_header(timing.orca_json(report)) == report
    assert timing.parse_orca_binary(timing.orca_binary(report)) == report
    in_base64 = b"BIN " + base64.b64encode(timing.orca_binary(report))
    assert timing.parse_orca_header(in_base64) == report


def test_figures_that_are_not_finite_are_left_out() -> None:
    report = {"eps": math.nan, "cpu_utilization": math.inf, "depth": 1.0}
    assert timing.parse_orca_header(timing.orca_json(report)) == {"depth": 1.0}
    assert timing.parse_orca_header(timing.orca_text(report)) == {"depth": 1.0}
    assert timing.parse_orca_binary(timing.orca_binary(report)) == {"depth": 1.0}


def test_json_is_a_header_value_whatever_the_names() -> None:
    value = timing.orca_json({"dépth\r\nx: y": 1.0})
    assert value.isascii()
    assert b"\r" not in value
    assert b"\n" not in value
    assert timing.parse_orca_header(value) == {"dépth\r\nx: y": 1.0}


@pytest.mark.parametrize("name", ["a b", "a,b", "a=b", "a\r\nb", "é"])
def test_text_refuses_names_it_cannot_carry(name: str) -> None:
    with pytest.raises(InvalidArgument, match="load report") as raised:
        timing.orca_text({name: 1.0})
    assert repr(name) in raised.value.message


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'JSON {"cpu_utilization": true, "eps": "1", "rps_fractional": 2, "new": 3}', {"rps_fractional": 2.0}),
        (b'JSON {"named_metrics": 4, "utilization": {"a": null, "b": 1}}', {"utilization.b": 1.0}),
        (b'JSON {"eps": 1' + b"0" * 400 + b"}", {}),
        (b'JSON {"eps": NaN, "mem_utilization": 0.5}', {"mem_utilization": 0.5}),
        (b"TEXT eps=1,cpu_utilization=0.5 , unknown=3, mem_utilization=x, =", {"eps": 1.0, "cpu_utilization": 0.5}),
        (b"TEXT ", {}),
        (b"TEXT eps=nan, named_metrics.d=2", {"d": 2.0}),
    ],
)
def test_what_is_not_understood_in_a_report_is_left_out(value: bytes, expected: dict[str, float]) -> None:
    assert timing.parse_orca_header(value) == expected


@pytest.mark.parametrize(
    "value",
    [b"", b"XML <a/>", b"JSON", b"JSON [1]", b"JSON {", b"JSON " + b"[" * 100_000, b"BIN *", b"BIN CQ=="],
)
def test_bytes_that_are_no_report_are_refused(value: bytes) -> None:
    with pytest.raises(MalformedRequest, match="load report"):
        timing.parse_orca_header(value)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_report_or_are_refused(message: bytes) -> None:
    try:
        report = timing.parse_orca_binary(message)
    except MalformedRequest:
        return
    assert all(math.isfinite(value) for value in report.values())


def test_a_varint_that_does_not_end_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="varint"):
        timing.parse_orca_binary(b"\xff" * 11)


def test_header_names_are_lower_case_as_http2_wants_them() -> None:
    names = (
        timing.SERVER_TIMING_HEADER,
        timing.ORCA_FORMAT_HEADER,
        timing.ORCA_HEADER,
        timing.ORCA_BINARY_HEADER,
    )
    assert all(name == name.lower() for name in names)
