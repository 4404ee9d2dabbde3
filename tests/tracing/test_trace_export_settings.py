"""The options of --trace-config opentelemetry, and what the trace settings say of sampling."""

from __future__ import annotations

import pytest

from isochrone.errors import InvalidArgument
from isochrone.observe.tracing.settings import ExportSettings, SamplingSettings


def test_defaults_are_those_of_otlp() -> None:
    assert ExportSettings.read({}).url == "http://localhost:4318/v1/traces"
    assert ExportSettings.read({"protocol": ["grpc"]}).url == "http://localhost:4317"


def test_options() -> None:
    read = ExportSettings.read(
        {
            "url": ["collector:4318/v1/traces"],
            "resource": ["service.name=edge", "zone=b=c"],
            "bsp_max_queue_size": ["7"],
            "bsp_schedule_delay": ["20"],
            "bsp_max_export_batch_size": ["3"],
            "timeout": ["250"],
        }
    )
    assert read == ExportSettings(
        "http", "http://collector:4318/v1/traces", {"service.name": "edge", "zone": "b=c"}, 7, 20, 3, 250
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "ftp://x"),
        ("url", "http://"),
        ("url", "http://x:port"),
        ("protocol", "carrier-pigeon"),
        ("resource", "name"),
        ("resource", "=x"),
        ("bsp_max_queue_size", "0"),
        ("bsp_max_queue_size", "-1"),
        ("bsp_schedule_delay", "soon"),
        ("timeout", "99999999999999999999999999"),
        ("colour", "red"),
    ],
)
def test_wrong_options_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match=f"--trace-config opentelemetry,{name}: expected"):
        ExportSettings.read({name: [value]})


@pytest.mark.parametrize(
    ("level", "mode", "count", "is_on"),
    [
        (["TIMESTAMPS"], "opentelemetry", "-1", True),
        (["TIMESTAMPS", "TENSORS"], "opentelemetry", "3", True),
        (["TENSORS"], "opentelemetry", "-1", False),
        (["OFF"], "opentelemetry", "-1", False),
        (["TIMESTAMPS"], "opentelemetry", "0", False),
        (["TIMESTAMPS"], "triton", "-1", False),
    ],
)
def test_what_turns_tracing_on(level: list[str], mode: str, count: str, is_on: bool) -> None:
    settings = {"trace_level": level, "trace_rate": ["5"], "trace_count": [count], "trace_mode": [mode]}
    assert SamplingSettings.read(settings).is_on is is_on
