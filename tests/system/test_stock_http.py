"""HTTP by hand, where a stock client has no method for it: generate, raw requests, paths, encodings, index filters."""

from __future__ import annotations

import http.client
import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from isochrone.protocol.compression.codec import ACCEPTED
from server_process import ServerProcess


class Http:
    """One keep-alive connection."""

    def __init__(self, server: ServerProcess) -> None:
        self.connection = http.client.HTTPConnection(server.http_url, timeout=60)

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        data = json.dumps(body).encode() if isinstance(body, dict | list) else body
        self.connection.request(method, path, data, headers or {})
        answer = self.connection.getresponse()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()

    def error(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
        status, given, data = self.send(method, path, body, headers)
        assert given["content-type"] == "application/json"
        decoded = json.loads(data)
        assert list(decoded) == ["error"]
        return status, decoded["error"]


@pytest.fixture
def web(sample_server: ServerProcess) -> Iterator[Http]:
    made = Http(sample_server)
    yield made
    made.connection.close()


class TestRawRequests:
    def test_the_body_is_the_tensor(self, web: Http) -> None:
        values = np.arange(4, dtype=np.float32)
        headers = {"Inference-Header-Content-Length": "0"}
        status, given, data = web.send("POST", "/v2/models/no_config/infer", values.tobytes(), headers)
        assert status == 200
        length = int(given["inference-header-content-length"])
        assert json.loads(data[:length])["outputs"][0]["shape"] == [1, 4]
        assert np.frombuffer(data[length:], np.float32).tolist() == [1, 2, 3, 4]

    def test_a_free_dimension_follows_from_the_size(self, web: Http) -> None:
        headers = {"Inference-Header-Content-Length": "0"}
        _, given, data = web.send("POST", "/v2/models/identity_int32/infer", bytes(20), headers)
        assert json.loads(data[: int(given["inference-header-content-length"])])["outputs"][0]["shape"] == [5]

    def test_a_size_that_does_not_fit(self, web: Http) -> None:
        headers = {"Inference-Header-Content-Length": "0"}
        status, message = web.error("POST", "/v2/models/no_config/infer", bytes(15), headers)
        assert status == 400
        assert "15" in message
        assert "16" in message

    def test_one_input_only(self, web: Http) -> None:
        headers = {"Inference-Header-Content-Length": "0"}
        status, message = web.error("POST", "/v2/models/add_sub/infer", bytes(64), headers)
        assert (status, "add_sub" in message, "2" in message) == (400, True, True)


class TestGenerate:
    def test_one_answer(self, web: Http) -> None:
        status, given, data = web.send("POST", "/v2/models/words/generate", {"text_input": "hello", "id": "7"})
        assert (status, given["content-type"]) == (200, "application/json")
        assert json.loads(data) == {"id": "7", "model_name": "words", "model_version": "1", "text_output": "hello"}

    def test_a_stream_of_events(self, web: Http) -> None:
        body = {"text_input": "one two three four", "parameters": {"max_words": 3}}
        status, given, data = web.send("POST", "/v2/models/words/versions/1/generate_stream", body)
        assert status == 200
        assert given["content-type"].startswith("text/event-stream")
        events = data.decode().removesuffix("\n\n").split("\n\n")
        assert all(event.startswith("data: ") for event in events)
        assert [json.loads(event[6:])["text_output"] for event in events] == ["one", "two", "three"]

    def test_an_ordinary_model(self, web: Http) -> None:
        for verb in ("generate", "generate_stream"):
            _, _, data = web.send("POST", f"/v2/models/no_config/{verb}", {"X": [1, 2, 3, 4]})
            assert json.loads(data.decode().removeprefix("data: "))["Y"] == [2, 3, 4, 5]

    def test_an_error_half_way_is_an_event(self, web: Http) -> None:
        status, _, data = web.send("POST", "/v2/models/repeat/generate_stream", {"IN": [1, -1, 2]})
        assert status == 200
        first, second = data.decode().removesuffix("\n\n").split("\n\n")
        assert json.loads(first[6:])["OUT"] == 1
        assert "element 1 is negative" in json.loads(second[6:])["error"]

    @pytest.mark.parametrize("verb", ["generate", "generate_stream"])
    def test_errors(self, web: Http, verb: str) -> None:
        assert web.error("POST", f"/v2/models/nobody/{verb}", {}) == (
            404,
            "Request for unknown model: 'nobody' is not found",
        )
        status, message = web.error("POST", f"/v2/models/words/{verb}", {"text": "hello"})
        assert (status, "text_input" in message) == (400, True)
        status, headers, data = web.send("POST", f"/v2/models/repeat/{verb}", {"IN": [-1]})
        # What the model answers first may be its error: an event of a stream, too.
        kind = "text/event-stream; charset=utf-8" if verb == "generate_stream" else "application/json"
        assert (status, headers["content-type"]) == (500, kind)
        assert "element 0 is negative" in json.loads(data.removeprefix(b"data: "))["error"]


class TestPaths:
    @pytest.mark.parametrize("path", ["/v2", "/v2/"])
    def test_server_metadata(self, web: Http, path: str) -> None:
        status, _, data = web.send("GET", path)
        assert (status, json.loads(data)["name"]) == (200, "isochrone")

    @pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/add_sub/ready"])
    def test_health(self, web: Http, path: str) -> None:
        status, _, data = web.send("GET", path)
        assert (status, data) == (200, b"")

    def test_a_model_version_that_is_not_ready(self, web: Http) -> None:
        status, _, _ = web.send("GET", "/v2/models/add_sub/versions/9/ready")
        assert status == 400

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/v2/models/add_sub/infer"),
            ("POST", "/v2/health/live"),
            ("DELETE", "/v2"),
            ("GET", "/v2/repository/index"),
        ],
    )
    def test_wrong_method(self, web: Http, method: str, path: str) -> None:
        status, message = web.error(method, path)
        assert status == 405
        assert method in message

    def test_no_such_path(self, web: Http) -> None:
        status, message = web.error("GET", "/v3/models")
        assert (status, "/v3/models" in message) == (404, True)

    def test_the_index_of_what_is_ready(self, web: Http) -> None:
        for body in (b"", b"{}", b'{"ready": true}'):
            status, _, data = web.send("POST", "/v2/repository/index", body)
            assert status == 200
            assert {"name": "add_sub", "version": "1", "state": "READY"}.items() <= _row(data, "add_sub").items()

    def test_statistics_have_numbers(self, web: Http) -> None:
        _, _, data = web.send("GET", "/v2/models/add_sub/versions/1/stats")
        stages = json.loads(data)["model_stats"][0]["inference_stats"]
        for stage in (
            *("success", "queue", "compute_input", "compute_infer"),
            "compute_output",
            "cache_hit",
            "cache_miss",
        ):
            assert isinstance(stages[stage]["count"], int)
            assert isinstance(stages[stage]["ns"], int)


class TestEncodings:
    def test_another_encoding(self, web: Http) -> None:
        status, given, data = web.send("POST", "/v2/models/add_sub/infer", b"x", {"Content-Encoding": "br"})
        assert status == 501
        assert given["accept-encoding"] == ACCEPTED.decode()
        assert "br" in json.loads(data)["error"]

    def test_the_better_of_two(self, web: Http) -> None:
        values = list(range(5000))
        body = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [len(values)], "data": values}]}
        headers = {"Accept-Encoding": "br;q=1, deflate;q=0.5, gzip;q=0.1"}
        status, given, data = web.send("POST", "/v2/models/identity_int32/infer", body, headers)
        assert (status, given["content-encoding"]) == (200, "deflate")
        assert json.loads(zlib.decompress(data))["outputs"][0]["data"] == values

    def test_a_small_answer_is_not_worth_it(self, web: Http) -> None:
        body = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [5]}]}
        headers = {"Accept-Encoding": "gzip, deflate"}
        status, given, data = web.send("POST", "/v2/models/identity_int32/infer", body, headers)
        assert status == 200
        assert "content-encoding" not in given
        assert json.loads(data)["outputs"][0]["data"] == [5]


def _row(data: bytes, name: str) -> dict[str, Any]:
    row: dict[str, Any] = next(row for row in json.loads(data) if row["name"] == name)
    return row
