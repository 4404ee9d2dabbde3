"""The generate extension over the wire: one response or an error, streams of events, and raw BYTES requests."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_models import write_config, write_models, write_python
from server_process import ServerProcess, StartServer

EVENTS = "text/event-stream; charset=utf-8"
TWO_RESPONSES = "generate expects model to produce exactly 1 response, use generate stream"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer) -> Iterator[ServerProcess]:
    repository: Path = write_models(tmp_path_factory.mktemp("generate") / "models", "words", "repeat", "identity_fp64")
    write_config(
        repository / "shout",
        """
        backend: "python"
        max_batch_size: 4
        input { name: "text" data_type: TYPE_STRING dims: [1] }
        output { name: "loud" data_type: TYPE_STRING dims: [1] }
        """,
    )
    loud = "[[text.upper()] for text in inputs['text'].ravel()]"
    write_python(
        repository / "shout", f"class Model:\n    def infer(self, inputs):\n        return {{'loud': {loud}}}\n"
    )
    with server_factory(repository) as server:
        yield server


def post(server: ServerProcess, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Status, content type and body."""
    connection = http.client.HTTPConnection(server.http_url, timeout=60)
    try:
        connection.request("POST", path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"], answer.read().decode()
    finally:
        connection.close()


def test_an_error_before_any_response_is_an_event(server: ServerProcess) -> None:
    status, kind, text = post(server, "/v2/models/repeat/generate_stream", b'{"IN": [-1]}')
    assert (status, kind) == (500, EVENTS)
    assert text.startswith('data: {"error":')
    assert text.endswith("\n\n")
    assert "element 0 is negative" in json.loads(text.removeprefix("data: "))["error"]


def test_an_error_behind_a_response_too(server: ServerProcess) -> None:
    status, kind, text = post(server, "/v2/models/repeat/generate_stream", b'{"IN": [4, -1]}')
    first, second, end = text.split("\n\n")
    assert (status, kind, end) == (200, EVENTS, "")
    assert json.loads(first.removeprefix("data: "))["OUT"] == 4
    assert "element 1 is negative" in json.loads(second.removeprefix("data: "))["error"]


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_a_request_that_cannot_be_read_is_json(server: ServerProcess, verb: str) -> None:
    for body in (b"[", b'{"IN": "x"}', b'{"IN": [1], "IN": [2]}', b'{"IN": [1], "p": 1, "p": 2}'):
        status, kind, text = post(server, f"/v2/models/repeat/{verb}", body)
        assert (status, kind) == (400, "application/json"), text
        assert json.loads(text)["error"]


@pytest.mark.parametrize(("text_input", "answer"), [("one", "one"), ("one two", None), ("", None)])
def test_generate_wants_exactly_one_response(server: ServerProcess, text_input: str, answer: str | None) -> None:
    body = json.dumps({"text_input": text_input}).encode()
    status, _, text = post(server, "/v2/models/words/generate", body)
    if answer is None:
        assert status == 400
        assert TWO_RESPONSES in json.loads(text)["error"]
    else:
        assert (status, json.loads(text)["text_output"]) == (200, answer)


def test_numbers_that_json_lacks(server: ServerProcess) -> None:
    body = b'{"inputs": [{"name": "IN", "datatype": "FP64", "shape": [3], "data": [NaN, Infinity, -Infinity]}]}'
    status, _, text = post(server, "/v2/models/identity_fp64/infer", body)
    assert (status, '"data":[NaN,Infinity,-Infinity]' in text) == (200, True)
    status, _, text = post(server, "/v2/models/identity_fp64/generate", b'{"IN": [NaN, 1.0]}')
    assert (status, '"OUT":[NaN,1.0]' in text) == (200, True)


RAW = {"Inference-Header-Content-Length": "0"}


def test_a_raw_request_for_one_element_of_bytes(server: ServerProcess) -> None:
    for element in (b"hello", b"", b"\5\0\0\0hello"):
        status, kind, text = post(server, "/v2/models/shout/infer", element, RAW)
        assert (status, kind) == (200, "application/octet-stream")
        loud = element.upper()
        assert text.encode().endswith(len(loud).to_bytes(4, "little") + loud)
        assert '"shape":[1,1]' in text
