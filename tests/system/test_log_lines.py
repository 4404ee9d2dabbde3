"""The log of a real server: failures said once, details for those who ask, and runs that hang given up."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sample_models import write_config, write_python
from server_process import ServerProcess, StartServer

CONFIG = """
    backend: "python"
    max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""
#: Raises on 13; -1 hangs.
FUSSY = """
    import threading

    class Model:
        def infer(self, inputs):
            if 13 in inputs["x"]:
                raise ValueError("not thirteen")
            if -1 in inputs["x"]:
                threading.Event().wait()
            return {"y": inputs["x"]}
"""
HANGING_STREAM = """
    import threading

    class Model:
        def infer(self, inputs):
            yield {"y": inputs["x"]}
            if -1 in inputs["x"]:
                threading.Event().wait()
"""
TIMEOUT = 'parameters { key: "execution_timeout_ms" value { string_value: "150" } }'


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.http_url, timeout=60)
    try:
        connection.request("POST", f"/v2/models/{path}", json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def infer(server: ServerProcess, model: str, value: float, **parameters: Any) -> tuple[int, str]:
    body = {
        "id": "seven",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}],
        "parameters": parameters,
    }
    return post(server, f"{model}/infer", body)


def lines_of(server: ServerProcess, event: str) -> list[dict[str, Any]]:
    return [line for line in server.log_events() if line.get("event") == event]


def test_a_model_that_raises_is_told_once_and_its_traceback_to_those_who_ask(
    tmp_path: Path, server_factory: StartServer
) -> None:
    write_config(tmp_path / "models" / "fussy", CONFIG)
    write_python(tmp_path / "models" / "fussy", FUSSY)
    for verbose in (0, 1, 2):
        with server_factory(tmp_path / "models", "--log-verbose", str(verbose)) as server:
            for value in (13, 13, 1):
                assert infer(server, "fussy", value)[0] == (500 if value == 13 else 200)
        (line,) = lines_of(server, "model failed")
        assert line["level"] == "warning"
        assert "ValueError: not thirteen (model.py:6)" in line["error"]
        tracebacks = lines_of(server, "traceback of the failure")
        assert len(tracebacks) == (1 if verbose else 0)
        if verbose:
            assert 'raise ValueError("not thirteen")' in tracebacks[0]["exception"]
        assert bool(lines_of(server, "assumed")) == bool(lines_of(server, "instance loaded")) == bool(verbose)
        assert len([line for line in server.log_events() if "configuration completed" in line["event"]]) == 1
        outcomes = [(line["id"], line["outcome"]) for line in lines_of(server, "request")]
        answered = [("seven", "model_failed"), ("seven", "model_failed"), ("seven", "answered")]
        assert outcomes == (answered if verbose == 2 else [])


@pytest.mark.parametrize("broken", ["model.py", "config.pbtxt", "nobody"])
def test_a_model_that_does_not_load_is_explained_once(tmp_path: Path, broken: str) -> None:
    write_config(tmp_path / "models" / "m", CONFIG + ("input {" if broken == "config.pbtxt" else ""))
    write_python(tmp_path / "models" / "m", "raise RuntimeError('broken')" if broken == "model.py" else FUSSY)
    command = [str(Path(sys.executable).with_name("isochrone")), "serve", str(tmp_path / "models"), "--log-json"]
    command += ["--host", "127.0.0.1", "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    if broken == "nobody":
        command += ["--model-control-mode", "explicit", "--load-model", "nobody"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1
    why = {"model.py": "RuntimeError: broken", "config.pbtxt": "expected a '}'", "nobody": "nobody"}[broken]
    told = ended.stdout + ended.stderr
    lines = []
    for line in told.splitlines():
        with contextlib.suppress(ValueError):
            lines.append(json.loads(line))
    (failed,) = [line for line in lines if line["event"] == "model failed to load"]
    assert why in failed["error"]
    if broken != "nobody":
        assert told.count(why) == 1
    assert told.splitlines()[-1].startswith("isochrone serve: models failed to load: ")


def test_streams_and_sequences_that_hang_are_given_up(tmp_path: Path, server_factory: StartServer) -> None:
    repository = tmp_path / "models"
    decoupled = CONFIG.replace("max_batch_size: 4", "max_batch_size: 1")
    write_config(repository / "stream", decoupled + "model_transaction_policy { decoupled: true }" + TIMEOUT)
    write_python(repository / "stream", HANGING_STREAM)
    write_config(repository / "sequence", CONFIG + "sequence_batching { }" + TIMEOUT)
    write_python(repository / "sequence", FUSSY)
    # The threads that hang are left behind, and must not keep the server from ending.
    with server_factory(repository) as server:
        for _ in range(2):
            _, text = post(server, "stream/generate_stream", {"x": -1})
            assert '"y":-1' in text
            assert "execution_timeout_ms (150)" in text
        assert '"y":5' in post(server, "stream/generate_stream", {"x": 5})[1]
        status, text = infer(server, "sequence", -1, sequence_id=1, sequence_start=True)
        assert status == 500
        assert "execution_timeout_ms (150)" in text
        status, text = infer(server, "sequence", 2, sequence_id=1)
        assert status == 400
        assert "START" in text
        status, text = infer(server, "sequence", 3, sequence_id=1, sequence_start=True, sequence_end=True)
        assert json.loads(text)["outputs"][0]["data"] == [3.0]
        assert len(lines_of(server, "a run hung; its instance is being replaced")) == 3
