"""Logs: what a line looks like, and that Triton's settings really change what comes out."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from isochrone.errors import InvalidArgument, Unsupported
from isochrone.observe import logs
from isochrone.observe.sparing import Sparing

TIMESTAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    structlog.reset_defaults()


def log_all_levels() -> None:
    log = structlog.get_logger("isochrone.test")
    log.debug("very detailed", verbosity=2)
    log.debug("detailed")
    log.info("told")
    log.warning("warned")
    log.error("failed")


def events(stream: io.StringIO) -> list[str]:
    return [json.loads(line)["event"] for line in stream.getvalue().splitlines()]


def test_key_value_lines() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    structlog.get_logger("isochrone.test").info("model ready", model="m 1", version=3)
    line = stream.getvalue()
    assert re.fullmatch(rf"{TIMESTAMP} \[info *\] model ready .*\n", line)
    assert "model='m 1'" in line
    assert "version=3" in line
    assert "\x1b" not in line


def test_json_lines() -> None:
    stream = io.StringIO()
    logs.configure(json=True, stream=stream)
    structlog.get_logger("isochrone.test").warning("queue full", model="a\nb", depth=4)
    event = json.loads(stream.getvalue())
    assert re.fullmatch(TIMESTAMP, event.pop("timestamp"))
    assert event == {
        "event": "queue full",
        "level": "warning",
        "logger": "isochrone.test",
        "model": "a\nb",
        "depth": 4,
    }


def test_the_standard_librarys_logging_comes_out_the_same_way() -> None:
    stream = io.StringIO()
    logs.configure(json=True, stream=stream)
    logging.getLogger("asyncio").error("task %s was lost", 7)
    event = json.loads(stream.getvalue())
    assert (event["event"], event["level"], event["logger"]) == ("task 7 was lost", "error", "asyncio")
    assert re.fullmatch(TIMESTAMP, event["timestamp"])


@pytest.mark.parametrize("as_json", [False, True])
def test_an_exception_comes_with_its_traceback(as_json: bool) -> None:
    stream = io.StringIO()
    logs.configure(json=as_json, stream=stream)
    try:
        raise ValueError("the cause")
    except ValueError:
        structlog.get_logger().exception("load failed")
    assert "ValueError: the cause" in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 1 or not as_json


def test_setting_up_again_replaces_what_was() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure(json=True, stream=first)
    logs.configure(json=True, stream=second)
    structlog.get_logger().info("once")
    assert events(first) == []
    assert events(second) == ["once"]


def test_a_log_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    settings = logs.configure(json=True, log_file=str(path))
    structlog.get_logger().info("to the file")
    assert json.loads(path.read_text())["event"] == "to the file"
    assert settings.current()["log_file"] == str(path)


def test_a_log_file_that_cannot_be_opened_leaves_logging_as_it_was(tmp_path: Path) -> None:
    stream = io.StringIO()
    logs.configure(json=True, stream=stream)
    with pytest.raises(OSError, match="missing"):
        logs.configure(log_file=str(tmp_path / "missing" / "server.log"))
    structlog.get_logger().info("still here")
    assert events(stream) == ["still here"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["told", "warned", "failed"]),
        ({"log_info": False}, ["warned", "failed"]),
        ({"log_warning": False}, ["told", "failed"]),
        ({"log_error": False}, ["told", "warned"]),
        ({"log_info": False, "log_warning": False, "log_error": False}, []),
        ({"log_verbose_level": 1}, ["detailed", "told", "warned", "failed"]),
        ({"log_verbose_level": 2, "log_info": False}, ["very detailed", "detailed", "warned", "failed"]),
    ],
)
def test_settings_take_effect_and_can_be_taken_back(changes: dict[str, Any], expected: list[str]) -> None:
    stream = io.StringIO()
    settings = logs.configure(json=True, stream=stream)
    before = settings.current()
    assert settings.apply(changes) == {**before, **changes}
    log_all_levels()
    assert events(stream) == expected
    stream.truncate(0)
    stream.seek(0)
    settings.apply({name: value for name, value in before.items() if name != "log_file"})
    log_all_levels()
    assert events(stream) == ["told", "warned", "failed"]


def test_settings_filter_the_standard_librarys_logging_too() -> None:
    stream = io.StringIO()
    logs.configure(json=True, stream=stream).apply({"log_warning": False})
    logging.getLogger("asyncio").warning("slow callback")
    logging.getLogger("asyncio").info("polling")
    assert events(stream) == ["polling"]


def test_the_format_changes_the_timestamp() -> None:
    stream = io.StringIO()
    settings = logs.configure(stream=stream)
    settings.apply({"log_format": "ISO8601"})
    structlog.get_logger().info("told")
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", stream.getvalue())


def test_verbose_at_the_start() -> None:
    stream = io.StringIO()
    assert logs.configure(verbose=1, json=True, stream=stream).current()["log_verbose_level"] == 1
    log_all_levels()
    assert events(stream)[0] == "detailed"


def test_the_settings_are_tritons() -> None:
    assert logs.configure(stream=io.StringIO()).current() == {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("log_infos", True, "log_verbose_level"),
        ("log_info", 1, "a boolean"),
        ("log_error", "true", "a boolean"),
        ("log_verbose_level", True, "an integer"),
        ("log_verbose_level", -1, "an integer"),
        ("log_verbose_level", 1 << 32, "an integer"),
        ("log_verbose_level", "1", "an integer"),
        ("log_format", "json", "default, ISO8601"),
        ("log_format", 3, "default, ISO8601"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_changes(name: str, value: bool | int | str, expected: str) -> None:
    settings = logs.configure(stream=io.StringIO())
    before = settings.current()
    with pytest.raises(InvalidArgument, match=name) as raised:
        settings.apply({"log_warning": False, name: value})
    assert expected in raised.value.message
    assert settings.current() == before


def test_a_client_cannot_choose_the_file(tmp_path: Path) -> None:
    settings = logs.configure(stream=io.StringIO())
    with pytest.raises(Unsupported, match="log file location can not be updated through network protocol"):
        settings.apply({"log_file": str(tmp_path / "theirs")})
    assert not (tmp_path / "theirs").exists()


def test_lines_that_would_repeat_are_held_back_and_counted() -> None:
    sparing = Sparing(every_ns=100)
    assert sparing.lets_through(1000) == 0
    assert [sparing.lets_through(now) for now in (1000, 1050, 1099)] == [None, None, None]
    assert sparing.lets_through(1100) == 3
    assert sparing.lets_through(1101) is None
    assert sparing.lets_through(1500) == 1
    assert sparing.lets_through(1700) == 0
