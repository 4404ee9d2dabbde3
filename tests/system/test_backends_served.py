"""Backends by Triton's names in a real worker, over HTTP and gRPC with stock clients."""

from __future__ import annotations

import contextlib
import pickle
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino.opset13 as ops
import pytest
import tritonclient.grpc
import tritonclient.http
from sklearn.ensemble import RandomForestClassifier

from documented import EXAMPLES
from server_process import ServerProcess, StartServer

FRAUD = runpy.run_path(str(EXAMPLES / "build_fraud_model.py"))
Array = np.ndarray[Any, Any]

#: With what Triton's own examples carry for GPUs.
FOREST = """
name: "forest"
backend: "fil"
max_batch_size: 32768
input [ { name: "input__0" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "output__0" data_type: TYPE_FP32 dims: [ 3 ] } ]
instance_group [ { kind: KIND_AUTO } ]
parameters [
  { key: "model_type" value { string_value: "treelite_checkpoint" } },
  { key: "predict_proba" value { string_value: "true" } },
  { key: "output_class" value { string_value: "true" } },
  { key: "threshold" value { string_value: "0.5" } },
  { key: "algo" value { string_value: "ALGO_AUTO" } },
  { key: "storage_type" value { string_value: "AUTO" } },
  { key: "blocks_per_sm" value { string_value: "0" } },
  { key: "use_experimental_optimizations" value { string_value: "true" } }
]
dynamic_batching { }
"""
IDENTITY = """
name: "echo"
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def forest() -> RandomForestClassifier:
    random = np.random.default_rng(3)
    rows = random.standard_normal((200, 4)).astype(np.float32)
    return RandomForestClassifier(n_estimators=10, max_depth=4, random_state=0).fit(
        rows, np.digitize(rows[:, 0], [-1, 1])
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("backends") / "models"
    assert FRAUD["build"](root) == 2
    # Without a config.pbtxt: model.xml tells all of it.
    (root / "double" / "1").mkdir(parents=True)
    x = ops.parameter([-1, 2], np.float32, name="x")
    y = ops.multiply(x, ops.constant(np.float32(2)))
    x.output(0).set_names({"x"})
    y.output(0).set_names({"y"})
    openvino.save_model(openvino.Model([y], [x], "double"), root / "double" / "1" / "model.xml")
    (root / "echo" / "1").mkdir(parents=True)
    (root / "echo" / "config.pbtxt").write_text(IDENTITY)
    pickled = tmp_path_factory.mktemp("pickle") / "model.pkl"
    pickled.write_bytes(pickle.dumps(forest()))
    command = [sys.executable, EXAMPLES / "sklearn_to_checkpoint.py", pickled, root / "forest" / "1"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "checkpoint.tl: 4 features" in said
    (root / "forest" / "config.pbtxt").write_text(FOREST)
    return root


@pytest.fixture(scope="module")
def server(server_factory: StartServer, repository: Path) -> Iterator[ServerProcess]:
    with server_factory(repository) as server:
        yield server


def ask(server: ServerProcess, transport: str, model: str, name: str, rows: Array, output: str) -> Array:
    stock: Any = tritonclient.http if transport == "http" else tritonclient.grpc
    address = server.http_url if transport == "http" else server.grpc_url
    with contextlib.closing(stock.InferenceServerClient(address)) as client:
        tensor = stock.InferInput(name, list(rows.shape), "FP32")
        tensor.set_data_from_numpy(rows)
        answer: Array = client.infer(model, [tensor]).as_numpy(output)
        return answer


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_the_fraud_model_scores_as_xgboost_does(server: ServerProcess, repository: Path, transport: str) -> None:
    rows, fraud = FRAUD["payments"](64, seed=7)
    scores = ask(server, transport, "fraud", "payment", rows, "fraud")
    booster = FRAUD["xgboost"].Booster(model_file=repository / "fraud" / "1" / "xgboost.json")
    assert np.allclose(scores[:, 0], booster.inplace_predict(rows), atol=1e-6)
    assert scores[fraud == 1].min() > scores[fraud == 0].mean()
    assert fraud.any()


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_the_other_backends_answer(server: ServerProcess, transport: str) -> None:
    rows = np.random.default_rng(4).standard_normal((5, 4)).astype(np.float32)
    given = ask(server, transport, "forest", "input__0", rows, "output__0")
    assert np.allclose(given, forest().predict_proba(rows), atol=1e-6)
    assert np.array_equal(ask(server, transport, "double", "x", rows[:, :2].copy(), "y"), 2 * rows[:, :2])
    assert np.array_equal(ask(server, transport, "echo", "INPUT0", rows, "OUTPUT0"), rows)


def test_configurations_state_tritons_names(server: ServerProcess) -> None:
    with contextlib.closing(tritonclient.http.InferenceServerClient(server.http_url)) as client:
        configs = {name: client.get_model_config(name) for name in ("double", "echo", "forest", "fraud")}
    assert {name: config["backend"] for name, config in configs.items()} == {
        "double": "openvino",
        "echo": "identity",
        "forest": "fil",
        "fraud": "fil",
    }
    assert configs["double"]["max_batch_size"] == 32
    assert configs["fraud"]["default_model_filename"] == "xgboost.json"
    assert [event for event in server.log_events() if event.get("level") not in ("info", "debug")] == []


def test_the_fraud_model_is_the_same_every_time(repository: Path, tmp_path: Path) -> None:
    assert FRAUD["build"](tmp_path) == 2
    for name in ("config.pbtxt", "1/xgboost.json"):
        assert (tmp_path / "fraud" / name).read_bytes() == (repository / "fraud" / name).read_bytes()
    assert FRAUD["build"](tmp_path) == 0


def test_what_is_no_estimator_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"not": "an estimator"}))
    program = str(EXAMPLES / "sklearn_to_checkpoint.py")
    monkeypatch.setattr(sys, "argv", [program, str(tmp_path / "model.pkl"), str(tmp_path / "1")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(program, run_name="__main__")
    # Text: it is printed, and the exit status is 1.
    assert str(ended.value.code).startswith(f"sklearn_to_checkpoint: {tmp_path / 'model.pkl'}: ")
    assert not (tmp_path / "1" / "checkpoint.tl").exists()
