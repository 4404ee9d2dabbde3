"""ORCA load reports, written, read back, and read from others."""

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
from isochrone.protocol.headers import orca

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
    assert orca.orca_text({"cpu_utilization": 0.3, "eps": 1.0, "depth": 4.0}) == (
        b"TEXT cpu_utilization=0.3, eps=1.0, named_metrics.depth=4.0"
    )
    form, _, text = orca.orca_json(REPORT).partition(b" ")
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
        base64.b64encode(orca.orca_binary({"cpu_utilization": 0.1, "rps_fractional": 2.0, "foo": 0.1, "bar": 0.2}))
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
    message = ORCA_MESSAGE.FromString(orca.orca_binary({**REPORT, "é" * 100: 7.0}))
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
    assert orca.parse_orca_binary(message.SerializeToString()) == {
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
    assert orca.parse_orca_header(orca.orca_text(report)) == report
    assert orca.parse_orca_header(orca.orca_json(report)) == report
    assert orca.parse_orca_binary(orca.orca_binary(report)) == report
    in_base64 = b"BIN " + base64.b64encode(orca.orca_binary(report))
    assert orca.parse_orca_header(in_base64) == report


def test_figures_that_are_not_finite_are_left_out() -> None:
    report = {"eps": math.nan, "cpu_utilization": math.inf, "depth": 1.0}
    assert orca.parse_orca_header(orca.orca_json(report)) == {"depth": 1.0}
    assert orca.parse_orca_header(orca.orca_text(report)) == {"depth": 1.0}
    assert orca.parse_orca_binary(orca.orca_binary(report)) == {"depth": 1.0}


def test_json_is_a_header_value_whatever_the_names() -> None:
    value = orca.orca_json({"dépth\r\nx: y": 1.0})
    assert value.isascii()
    assert b"\r" not in value
    assert b"\n" not in value
    assert orca.parse_orca_header(value) == {"dépth\r\nx: y": 1.0}


@pytest.mark.parametrize("name", ["a b", "a,b", "a=b", "a\r\nb", "é"])
def test_text_refuses_names_it_cannot_carry(name: str) -> None:
    with pytest.raises(InvalidArgument, match="load report") as raised:
        orca.orca_text({name: 1.0})
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
    assert orca.parse_orca_header(value) == expected


@pytest.mark.parametrize(
    "value",
    [b"", b"XML <a/>", b"JSON", b"JSON [1]", b"JSON {", b"JSON " + b"[" * 100_000, b"BIN *", b"BIN CQ=="],
)
def test_bytes_that_are_no_report_are_refused(value: bytes) -> None:
    with pytest.raises(MalformedRequest, match="load report"):
        orca.parse_orca_header(value)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_report_or_are_refused(message: bytes) -> None:
    try:
        report = orca.parse_orca_binary(message)
    except MalformedRequest:
        return
    assert all(math.isfinite(value) for value in report.values())


def test_a_varint_that_does_not_end_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="varint"):
        orca.parse_orca_binary(b"\xff" * 11)
