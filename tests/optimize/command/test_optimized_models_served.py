"""What ``isochrone optimize`` writes, a worker serves; a library that crashes costs its candidate alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tritonclient.http import InferenceServerClient, InferInput
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.optimize.searching.candidate import OPENVINO, RunSettings
from isochrone.optimize.searching.search import Ended
from isochrone.optimize.trials.source import config_text, of_repository
from optimizer_models import write_data, write_mlp
from server_process import ServerProcess, StartServer

#: So wide that a run takes its time for the weights: half of the hidden units do nothing, and INT8 is a quarter.
INPUTS, HIDDEN = 512, 4096
ROWS = np.random.default_rng(9).normal(size=(4, INPUTS)).astype(np.float32)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "models" / "wide"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text('name: "wide"\nbackend: "onnxruntime"\nmax_batch_size: 8\n')
    write_mlp(directory / "1" / "model.onnx", inputs=INPUTS, hidden=HIDDEN)
    write_data(tmp_path / "data.npz", rows=16, inputs=INPUTS)
    return tmp_path / "models"


def optimize(repository: Path, *words: object) -> dict[str, Any]:
    data = repository.parent / "data.npz"
    given = ["optimize", "wide", "--model-repository", repository, "--data", data, "--max-accuracy-drop", "20%", *words]
    ended = CliRunner().invoke(app, [*map(str, given), "--json"])
    assert ended.exit_code in (0, 1), ended.output
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def expected(repository: Path) -> Any:
    session = onnxruntime.InferenceSession(str(repository / "wide/1/model.onnx"), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": ROWS})[0]


def served(server: ServerProcess, model: str, version: str) -> Any:
    with InferenceServerClient(server.http_url) as client:
        tensor = InferInput("x", list(ROWS.shape), "FP32")
        tensor.set_data_from_numpy(ROWS)
        result = client.infer(model, [tensor], model_version=version)
        assert result.get_response()["model_version"] == version
        return result.as_numpy("y")


def difference(found: Any, wanted: Any) -> float:
    assert found.shape == wanted.shape
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.long
def test_a_worker_serves_a_new_model_and_the_old_one(repository: Path, server_factory: StartServer) -> None:
    document = optimize(repository, "--new-model", "wide_fast", "--budget", "1s", "--seconds", 6)
    assert document["met"]
    assert document["written"] == str(repository / "wide_fast")
    assert sorted(path.name for path in (repository / "wide").iterdir()) == ["1", "config.pbtxt"]
    with server_factory(repository) as server:
        assert difference(served(server, "wide_fast", "1"), expected(repository)) <= 0.2
        assert difference(served(server, "wide", "1"), expected(repository)) <= 1e-5


@pytest.mark.long
def test_a_worker_serves_a_new_version_beside_the_old_one(repository: Path, server_factory: StartServer) -> None:
    document = optimize(repository, "--budget", "0.001us", "--write-closest", "--seconds", 20)
    assert not document["met"]
    assert document["written"] == str(repository / "wide" / "2")
    assert sorted(path.name for path in (repository / "wide").iterdir()) == ["1", "2", "config.pbtxt"]
    assert (repository / "wide/2/model.onnx").read_bytes() != (repository / "wide/1/model.onnx").read_bytes()
    config = repository / "wide" / "config.pbtxt"
    config.write_text(config.read_text() + "version_policy { all {} }\n")
    with server_factory(repository) as server:
        assert difference(served(server, "wide", "2"), expected(repository)) <= 0.2
        assert difference(served(server, "wide", "1"), expected(repository)) <= 1e-5


@pytest.mark.long
@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGABRT"])
def test_a_library_that_crashes_costs_its_candidate(
    signal: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "crashing" / "onnxslim.py"
    library.parent.mkdir()
    library.write_text(f"import os, signal\ndef slim(*given):\n    os.kill(os.getpid(), signal.{signal})\n")
    monkeypatch.setenv("PYTHONPATH", f"{library.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    document = optimize(repository, "--budget", "1s", "--seconds", 60)
    float_model, slim = document["candidates"]
    assert slim["transformations"] == ["slim"]
    assert slim["reason"] == f"slim: its process ended by {signal}"
    assert "median_ms" not in slim
    assert document["chosen"]["transformations"] == float_model["transformations"] == []
    assert document["ended"] == Ended.NOTHING_GAINED
    assert sorted(path.name for path in repository.iterdir()) == ["wide"]


@pytest.mark.long
def test_a_worker_serves_the_configuration_of_an_openvino_winner(repository: Path, server_factory: StartServer) -> None:
    pytest.importorskip("openvino")
    directory = repository / "wide_openvino"
    (directory / "1").mkdir(parents=True)
    text = config_text(of_repository(repository, "wide"), directory.name, RunSettings(OPENVINO, 2))
    (directory / "config.pbtxt").write_text(text)
    shutil.copyfile(repository / "wide/1/model.onnx", directory / "1" / "model.onnx")
    with server_factory(repository) as server:
        assert difference(served(server, "wide_openvino", "1"), expected(repository)) <= 0.02
