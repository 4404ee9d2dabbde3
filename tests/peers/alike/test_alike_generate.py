"""The generate extension and JSON as Triton reads and writes it, beside real Triton."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from calls import HttpAnswer, Pair
from tritonclient.grpc import service_pb2 as pb

pytestmark = pytest.mark.peers

VERBS = ("generate", "generate_stream")
EVENTS = "text/event-stream"


def values(answer: HttpAnswer) -> list[Any]:
    """The answer's objects: one, or one per event."""
    if not answer.kind.startswith(EVENTS):
        return [answer.value]
    assert answer.body.endswith(b"\n\n") or not answer.body
    return [json.loads(event.removeprefix(b"data: ")) for event in answer.body.split(b"\n\n") if event]


GOOD: dict[str, tuple[str, Any]] = {
    "text": ("shout", {"text_input": "hi"}),
    "a list of one": ("shout", {"text_input": ["hi"]}),
    "with an id": ("shout", {"text_input": "hi", "id": "x"}),
    "a parameter": ("shout", {"text_input": "hi", "temperature": 1}),
    "nested parameters": ("shout", {"text_input": "hi", "parameters": {"a": 1, "b": "c"}}),
    "a decoupled model's one response": ("words", {"text_input": "one"}),
    "numbers": ("add_sub", {"INPUT0": [1, 2, 3, 4], "INPUT1": [1, 1, 1, 1]}),
    "a boolean": ("flags", {"INPUT0": True}),
    "a number JSON lacks": ("doubles", b'{"INPUT0": NaN}'),
    "numbers JSON lacks": ("doubles", b'{"INPUT0": [NaN, Infinity, -Infinity, 0.1]}'),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", GOOD)
def test_answers(pair: Pair, case: str, verb: str) -> None:
    model, body = GOOD[case]
    theirs, ours = pair.http("POST", f"/v2/models/{model}/{verb}", body)
    assert (ours.status, theirs.status) == (200, 200)
    assert ours.kind == theirs.kind
    # As text: NaN equals nothing, and the order of keys is nobody's business.
    assert [sorted(map(repr, each.items())) for each in values(ours)] == [
        sorted(map(repr, each.items())) for each in values(theirs)
    ]


@pytest.mark.parametrize("text", ["a b c", "a", ""])
def test_streams_of_any_length(pair: Pair, text: str) -> None:
    theirs, ours = pair.http("POST", "/v2/models/words/generate_stream", {"text_input": text})
    assert (ours.status, ours.kind, values(ours)) == (theirs.status, theirs.kind, values(theirs))
    assert len(values(ours)) == len(text.split())


WRONG: dict[str, tuple[str, Any, str]] = {
    "unknown model": ("nope", {"text_input": "x"}, "Request for unknown model: 'nope' is not found"),
    "no input": ("shout", {}, "expected 1 inputs but got 0 inputs for model 'shout'"),
    "too many elements": ("shout", {"text_input": ["a", "b"]}, "can not convert input 'text_input' to tensor"),
    "an input twice": ("shout", b'{"text_input": "a", "text_input": "b"}', "'text_input' already exists in request"),
    "an input twice, nested": (
        "shout",
        {"text_input": "a", "parameters": {"text_input": "b"}},
        "'text_input' already exists in request",
    ),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", WRONG)
def test_errors_before_the_model_runs(pair: Pair, case: str, verb: str) -> None:
    model, body, words = WRONG[case]
    theirs, ours = pair.http("POST", f"/v2/models/{model}/{verb}", body)
    assert (ours.status, ours.kind) == (theirs.status, theirs.kind)
    assert words in theirs.error
    assert words in ours.error


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("body", [b"", b"[", b"[]"])
def test_json_that_is_none_is_the_callers_mistake(pair: Pair, verb: str, body: bytes) -> None:
    """docs/protocol.md: 400, where Triton calls it a fault of its own."""
    theirs, ours = pair.http("POST", f"/v2/models/shout/{verb}", body)
    assert (ours.status, theirs.status) == (400, 500)
    assert ours.kind == theirs.kind
    assert ours.error


@pytest.mark.parametrize("model", ["shout", "words"])
def test_a_first_response_that_is_an_error(pair: Pair, model: str) -> None:
    """docs/protocol.md: what a model's code raises is 500, where Triton has 400."""
    for verb in VERBS:
        theirs, ours = pair.http("POST", f"/v2/models/{model}/{verb}", {"text_input": "fail"})
        assert (ours.status, theirs.status) == (500, 400)
        assert ours.kind == theirs.kind
        assert theirs.error == "asked to fail"
        assert "asked to fail" in ours.error


def test_an_error_behind_a_response(pair: Pair) -> None:
    theirs, ours = pair.http("POST", "/v2/models/words/generate_stream", {"text_input": "a fail"})
    assert (ours.status, ours.kind) == (theirs.status, theirs.kind) == (200, "text/event-stream; charset=utf-8")
    assert values(ours)[0] == values(theirs)[0]
    assert values(theirs)[1] == {"error": "asked to fail"}
    assert "asked to fail" in values(ours)[1]["error"]


@pytest.mark.parametrize("text", ["a b", ""])
def test_generate_wants_one_response(pair: Pair, text: str) -> None:
    """docs/protocol.md: an error has an error's status; Triton answers 200."""
    words = "generate expects model to produce exactly 1 response, use generate stream for model that generates various"
    pair.http_error(words, ("POST", "/v2/models/words/generate", {"text_input": text}), 400, 200)


NUMBERS = [float("nan"), float("inf"), -float("inf"), 1.5, 0.1, -0.0, 1.0, 1e300, 5e-324, 1e21, 123456789012345680.0]


def header(datatype: str, count: int, size: int) -> bytes:
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": [count], "parameters": {"binary_data_size": size}}
    return json.dumps({"inputs": [tensor]}).encode()


@pytest.mark.parametrize(("model", "datatype", "dtype"), [("doubles", "FP64", "<f8"), ("identity", "FP32", "<f4")])
def test_numbers_in_json_outputs(pair: Pair, model: str, datatype: str, dtype: str) -> None:
    """The same values to the last bit; the digits differ where two texts mean the same double."""
    with np.errstate(over="ignore", under="ignore"):
        data = np.array(NUMBERS).astype(dtype).tobytes()
    head = header(datatype, len(NUMBERS), len(data))
    fields = {"Inference-Header-Content-Length": str(len(head))}
    theirs, ours = pair.http("POST", f"/v2/models/{model}/infer", head + data, fields)
    assert repr(ours.value) == repr(theirs.value)
    for answer in (theirs, ours):
        assert b"[NaN,Infinity,-Infinity,1.5," in answer.body


def test_numbers_that_json_lacks_as_inputs(pair: Pair) -> None:
    body = b'{"inputs":[{"name":"INPUT0","datatype":"FP64","shape":[3],"data":[NaN,Infinity,-Infinity]}]}'
    pair.same_http("POST", "/v2/models/doubles/infer", body)


RAW = {"Inference-Header-Content-Length": "0"}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("word", b"hello"),
        ("word", b""),
        ("word", b"\5\0\0\0hello"),
        ("shout", b"loud"),
        ("identity", bytes(8)),
        ("flags", b"\0\1\1"),
    ],
)
def test_raw_binary_requests_are_answered_with_the_same_bytes(pair: Pair, model: str, body: bytes) -> None:
    pair.same_http("POST", f"/v2/models/{model}/infer", body, RAW)


def test_raw_binary_requests_that_cannot_be(pair: Pair) -> None:
    words = "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]"
    pair.http_error(words, ("POST", "/v2/models/text/infer", b"hello", RAW))
    theirs, ours = pair.http("POST", "/v2/models/add_sub/infer", bytes(16), RAW)
    assert ours.status == theirs.status == 400


@pytest.mark.parametrize("data", [bytes([0, 1, 2, 255]), bytes([1, 1, 0, 0])])
def test_booleans_count_the_same_every_time(pair: Pair, data: bytes) -> None:
    head = header("BOOL", 4, 4)
    fields = {"Inference-Header-Content-Length": str(len(head))}
    message = pb.ModelInferRequest(model_name="true_count")
    message.inputs.add(name="INPUT0", datatype="BOOL", shape=[4])
    message.raw_input_contents.append(data)
    for _ in range(3):
        pair.same_http("POST", "/v2/models/true_count/infer", head + data, fields)
        pair.same_grpc("ModelInfer", message)
