"""Trace settings: what a model inherits, and what is refused."""

from __future__ import annotations

import pytest

from isochrone.errors import InvalidArgument, IsochroneError, Unsupported
from isochrone.worker.trace_settings import TraceSettings

DEFAULTS = {
    "trace_level": ["OFF"],
    "trace_rate": ["1000"],
    "trace_count": ["-1"],
    "log_frequency": ["0"],
    "trace_file": [""],
    "trace_mode": ["triton"],
}


def test_defaults_are_shown() -> None:
    assert TraceSettings().apply("", {}) == DEFAULTS


def test_a_model_inherits_what_it_does_not_set() -> None:
    settings = TraceSettings({"trace_file": ["/tmp/t.json"]})
    settings.apply("", {"trace_rate": ["7"]})
    shown = settings.apply("m", {"trace_level": ["TIMESTAMPS", "TENSORS"]})
    assert shown["trace_rate"] == ["7"]
    assert shown["trace_level"] == ["TIMESTAMPS", "TENSORS"]
    assert settings.apply("", {})["trace_level"] == ["OFF"]
    settings.apply("", {"trace_rate": ["8"]})
    assert settings.apply("m", {})["trace_rate"] == ["8"]


def test_none_resets_a_model_to_global_and_global_to_default() -> None:
    settings = TraceSettings()
    settings.apply("", {"trace_rate": ["7"]})
    settings.apply("m", {"trace_rate": ["9"]})
    assert settings.apply("m", {"trace_rate": None})["trace_rate"] == ["7"]
    assert settings.apply("", {"trace_rate": None})["trace_rate"] == ["1000"]


def test_looking_at_a_model_keeps_nothing_of_it() -> None:
    settings = TraceSettings()
    settings.apply("looked_at", {})
    assert not settings._models


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trace_colour": ["red"]}, "trace setting 'trace_colour': expected one of"),
        ({"trace_level": ["LOUD"]}, "expected of OFF, TIMESTAMPS, TENSORS, given"),
        ({"trace_level": []}, "trace_level"),
        ({"trace_rate": ["often"]}, "expected one integer"),
        ({"trace_rate": ["1", "2"]}, "expect only 1 value for 'trace_rate'"),
        ({"trace_rate": ["-1"]}, r"'trace_rate', value is out of range \[ 0, 4294967295 \], got: -1"),
        ({"trace_count": ["-2"]}, r"'trace_count', value is out of range \[ -1, 2147483647 \], got: -2"),
        ({"log_frequency": ["x"]}, "Unable to parse 'log_frequency', got: x"),
        ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
        ({"trace_level": ["TENSORS"]}, "trace file name is not given"),
        ({"trace_rate": ["--1"]}, "expected one integer"),
        ({"trace_rate": ["²"]}, "expected one integer"),
        ({"trace_count": []}, "expect only 1 value for 'trace_count'"),
        ({"trace_file": ["/etc/passwd"]}, "can not be updated through network protocol"),
        ({"trace_file": None}, "can not be updated through network protocol"),
        ({"trace_mode": ["opentelemetry"]}, "cannot be changed while the server runs"),
    ],
)
def test_wrong_settings_are_told_and_change_nothing(changes: dict[str, list[str] | None], message: str) -> None:
    settings = TraceSettings()
    for model in ("", "m"):
        with pytest.raises(IsochroneError, match=message) as caught:
            settings.apply(model, {"log_frequency": ["5"], **changes})
        assert isinstance(caught.value, Unsupported if "trace_file" in changes else InvalidArgument)
        assert settings.apply(model, {}) == DEFAULTS


def test_values_are_shown_as_triton_shows_them() -> None:
    settings = TraceSettings({"trace_file": ["/tmp/t.json"]})
    shown = settings.apply("", {"trace_level": ["TENSORS", "TIMESTAMPS", "TENSORS"], "trace_rate": ["007"]})
    assert (shown["trace_level"], shown["trace_rate"]) == (["TIMESTAMPS", "TENSORS"], ["7"])
    # A client may send back what it was shown.
    assert settings.apply("", {"trace_mode": ["triton"]}) == shown


def test_the_command_lines_settings_are_what_a_reset_goes_back_to() -> None:
    settings = TraceSettings({"trace_rate": ["7"], "trace_file": ["/tmp/t.json"], "trace_level": ["TIMESTAMPS"]})
    assert settings.apply("", {})["trace_rate"] == ["7"]
    assert settings.apply("", {})["trace_file"] == ["/tmp/t.json"]
    settings.apply("", {"trace_rate": ["9"], "trace_level": ["OFF"]})
    reset = settings.apply("", {"trace_rate": None, "trace_level": None})
    assert (reset["trace_rate"], reset["trace_level"]) == (["7"], ["TIMESTAMPS"])
    with pytest.raises(InvalidArgument, match="trace_rate"):
        TraceSettings({"trace_rate": ["often"]})
