"""Trace settings, global and per model, beside real Triton: defaults, changes, clearing, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from calls import Pair
from tritonclient.grpc import service_pb2 as pb

pytestmark = pytest.mark.peers

GLOBAL = "/v2/trace/setting"
MODEL = "/v2/models/identity/trace/setting"
EVERYTHING = ("trace_level", "trace_rate", "trace_count", "log_frequency")


@pytest.fixture(autouse=True)
def _as_it_was(pair: Pair) -> Iterator[None]:
    yield
    for path in (MODEL, GLOBAL):
        pair.http("POST", path, dict.fromkeys(EVERYTHING))


def same(pair: Pair, path: str, body: Any = None) -> dict[str, Any]:
    """The settings after a call; the trace file's folder is the same for both."""
    answer = pair.same_http("GET" if body is None else "POST", path, b"" if body is None else body)
    return dict(answer.value)


def both(pair: Pair) -> tuple[dict[str, Any], dict[str, Any]]:
    return same(pair, GLOBAL), same(pair, MODEL)


def test_defaults_and_the_command_lines(pair: Pair) -> None:
    everywhere, model = both(pair)
    assert everywhere == model
    assert (everywhere["trace_rate"], everywhere["trace_level"], everywhere["trace_count"]) == ("11", ["OFF"], "-1")


def test_a_model_keeps_its_own_over_the_global_ones(pair: Pair) -> None:
    for path, body in (
        (MODEL, {"trace_level": ["TENSORS"]}),
        (GLOBAL, {"trace_rate": "5"}),
        (MODEL, {"trace_rate": "7"}),
        (GLOBAL, {"trace_rate": "9", "trace_level": ["TENSORS", "TIMESTAMPS"]}),
        (GLOBAL, {"trace_count": "3", "log_frequency": "4"}),
        (MODEL, {"trace_rate": None}),
        (MODEL, {"trace_level": None}),
        (GLOBAL, {"trace_rate": None, "trace_level": None}),
        (GLOBAL, {"trace_count": None}),
        (MODEL, {"log_frequency": None}),
        (GLOBAL, {"log_frequency": None}),
    ):
        same(pair, path, body)
        both(pair)


@pytest.mark.parametrize("path", [GLOBAL, MODEL])
@pytest.mark.parametrize(
    "body",
    [
        {"trace_level": ["TIMESTAMPS"]},
        {"trace_level": ["TIMESTAMPS", "TIMESTAMPS"]},
        {"trace_level": ["TENSORS", "TIMESTAMPS"]},
        {"trace_level": ["OFF"]},
        {"trace_rate": "0"},
        {"trace_rate": "007"},
        {"trace_count": "-1"},
        {"trace_mode": "triton"},
        {"trace_mode": None},
        {},
    ],
)
def test_changes_are_shown_alike(pair: Pair, path: str, body: Any) -> None:
    same(pair, path, body)
    both(pair)


@pytest.mark.parametrize("path", [GLOBAL, MODEL])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x"),
        ({"trace_rate": ""}, "Unable to parse 'trace_rate', got: "),
        ({"trace_count": "x"}, "Unable to parse 'trace_count', got: x"),
        ({"log_frequency": "x"}, "Unable to parse 'log_frequency', got: x"),
        ({"trace_rate": "99999999999"}, "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ]"),
        ({"trace_count": "99999999999"}, "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ]"),
        ({"trace_count": "-2"}, "Unable to parse 'trace_count'"),
        ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
        ({"trace_file": "elsewhere"}, "trace file location can not be updated through network protocol"),
        ({"trace_file": None}, "trace file location can not be updated through network protocol"),
    ],
)
def test_refusals(pair: Pair, path: str, body: Any, words: str) -> None:
    pair.http_error(words, ("POST", path, body))
    both(pair)


def setting(model: str = "", **changes: list[str]) -> Any:
    message = pb.TraceSettingRequest(model_name=model)
    for key, value in changes.items():
        message.settings[key].SetInParent()
        message.settings[key].value.extend(value)
    return message


def settings_of(answer: Any) -> dict[str, list[str]]:
    assert answer.code == "OK", answer
    message = pb.TraceSettingResponse.FromString(answer.message)
    return {key: list(value.value) for key, value in message.settings.items()}


@pytest.mark.parametrize("model", ["", "identity"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"trace_level": ["TENSORS"]},
        {"trace_rate": ["5"]},
        {"trace_rate": []},
        {"trace_count": ["7"], "log_frequency": ["8"]},
        {"trace_count": [], "log_frequency": [], "trace_level": []},
    ],
)
def test_over_grpc(pair: Pair, model: str, changes: Any) -> None:
    theirs, ours = pair.grpc("TraceSetting", setting(model, **changes))
    assert settings_of(ours) == settings_of(theirs)
    both(pair)


@pytest.mark.parametrize("model", ["", "identity"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trace_rate": ["5", "6"]}, "expect only 1 value for 'trace_rate'"),
        ({"trace_rate": ["x"]}, "Unable to parse 'trace_rate', got: x"),
        ({"trace_count": ["-5"]}, "Unable to parse 'trace_count'"),
        ({"trace_file": ["y"]}, "trace file location can not be updated through network protocol"),
    ],
)
def test_refusals_over_grpc(pair: Pair, model: str, changes: Any, words: str) -> None:
    pair.grpc_error(words, "TraceSetting", setting(model, **changes))


def test_an_unknown_model(pair: Pair) -> None:
    words = "Request for unknown model : nope"
    pair.http_error(words, ("GET", "/v2/models/nope/trace/setting"))
    pair.http_error(words, ("POST", "/v2/models/nope/trace/setting", {"trace_rate": "5"}))
    pair.grpc_error(words, "TraceSetting", setting("nope"))


@pytest.mark.parametrize("body", [{"trace_level": ["LOUD"]}, {"trace_mode": "opentelemetry"}, {"colour": "red"}])
def test_what_triton_ignores_is_refused_by_name(pair: Pair, body: Any) -> None:
    """docs/protocol.md: a setting that is not one is an error that names it; Triton says nothing of it."""
    theirs, ours = pair.http("POST", GLOBAL, body)
    assert (theirs.status, ours.status) == (200, 400)
    assert next(iter(body)) in ours.error
