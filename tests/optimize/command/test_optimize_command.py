"""``isochrone optimize`` from end to end on a small model: a budget met and not met, wrong input, an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import quantize_dynamic
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.models.repository.repository import Repository
from optimizer_models import write_data, write_mlp

runner = CliRunner()


def run(*words: object) -> Any:
    return runner.invoke(app, ["optimize", *map(str, words)])


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "models" / "small"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text('name: "small"\nbackend: "onnxruntime"\nmax_batch_size: 8\n')
    write_mlp(directory / "1" / "model.onnx", hidden=64)
    write_data(tmp_path / "data.npz")
    return tmp_path / "models"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
def test_a_met_budget_writes_a_model_that_loads(tmp_path: Path) -> None:
    model, data = write_mlp(tmp_path / "small.onnx", hidden=64), write_data(tmp_path / "data.npz")
    ended = run(model, "--budget", "1s", "--data", data, "--output", tmp_path / "fast", "--seconds", 3, "--json")
    assert ended.exit_code == 0, ended.output
    document = json.loads(ended.stdout)
    assert document["met"]
    assert document["written"] == str(tmp_path / "fast")
    assert document["chosen"]["median_ms"] <= 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == [".reports", "data.npz", "fast", "small.onnx"]
    assert sorted(path.name for path in (tmp_path / ".reports/fast/1").iterdir()) == ["report.html", "report.json"]
    described = Repository([tmp_path]).read("fast")
    assert list(described.versions) == [1]


@pytest.mark.long
def test_a_budget_that_cannot_be_met_is_refused_with_the_closest(repository: Path) -> None:
    before = files(repository)
    words = ("small", "--model-repository", repository, "--data", repository.parent / "data.npz", "--seconds", 2)
    ended = run(*words, "--budget", "0.001us")
    assert ended.exit_code == 1
    assert "No candidate met the budget" in ended.stdout
    assert "The closest is" in ended.stdout
    assert files(repository) == before
    ended = run(*words, "--budget", "0.001us", "--write-closest", "--json")
    assert ended.exit_code == 1
    written = json.loads(ended.stdout)["written"]
    assert written in (None, str(repository / "small" / "2"))  # none: the float model itself is the closest
    assert {name: files(repository)[name] for name in before} == before


@pytest.mark.long
def test_a_second_run_begins_from_the_float_version_again(repository: Path) -> None:
    words = ("small", "--model-repository", repository, "--data", repository.parent / "data.npz", "--seconds", 2)
    tight = (*words, "--budget", "0.001us", "--write-closest", "--max-accuracy-drop", "100%", "--json")
    for _ in range(2):
        assert json.loads(run(*tight).stdout)["file"] == str(repository / "small" / "1" / "model.onnx")


def test_a_quantized_model_is_no_reference(repository: Path) -> None:
    file = repository / "small" / "1" / "model.onnx"
    model = onnx.load(str(file))
    quantize_dynamic(model, str(repository / "small" / "1" / "model.onnx"))
    before = files(repository)
    words = ("small", "--model-repository", repository, "--budget", "5ms", "--data", repository.parent / "data.npz")
    wrong(run(*words), "expected a float model", repository, before)
    wrong(run(*words, "--version", 7), "a version of 'small': 1", repository, before)
    wrong(run(*words, "--device", "gpu"), "--new-model NAME", repository, before)
    wrong(run(file, *words[3:], "--version", 1), "a model of --model-repository", repository, before)


def wrong(ended: Any, text: str, folder: Path, before: dict[str, bytes]) -> None:
    assert ended.exit_code == 2, ended.output
    assert text in ended.stderr
    assert files(folder) == before


def test_wrong_models_and_data_are_errors_and_write_nothing(repository: Path) -> None:
    file, data = repository / "small" / "1" / "model.onnx", repository.parent / "data.npz"
    np.savez(repository.parent / "wrong.npz", x=np.zeros((8, 3), np.float32))
    before = files(repository)
    words = ("small", "--model-repository", repository, "--budget", "5ms")
    wrong(run(*words, "--data", repository.parent / "wrong.npz"), "rows of the input's shape", repository, before)
    wrong(run(*words, "--data", repository.parent / "none.npz"), "an .npz file", repository, before)
    wrong(run("other", *words[1:], "--data", data), "expected a model 'other'", repository, before)
    file.write_bytes(b"corrupt")
    before = files(repository)
    wrong(run(*words, "--data", data), "expected", repository, before)
    with file.open("wb") as huge:
        huge.truncate(1 << 31)  # sparse
    ended = run(*words, "--data", data)
    assert ended.exit_code == 2
    assert "at most 2 GiB" in ended.stderr
    file.unlink()


def test_labels_that_no_class_has_end_the_search_at_once(repository: Path) -> None:
    data = repository.parent / "labels.npz"
    with np.load(repository.parent / "data.npz") as archive:
        np.savez(data, x=archive["x"], y=np.arange(1, 65) % 4 + 1)
    before = files(repository)
    words = ("small", "--model-repository", repository, "--budget", "5ms", "--data", data, "--labels", "y")
    ended = run(*words)
    wrong(ended, "labels: expected 0 to 3, the classes of the model's scores, given 4", repository, before)
    assert ended.stderr.count("skipped") == 1


def test_an_unknown_operator_is_an_error(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 16])
    graph = helper.make_graph([helper.make_node("Nonesuch", ["x"], ["y"], domain="foreign")], "g", [value], [made])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("foreign", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(tmp_path / "m.onnx"))
    ended = run(tmp_path / "m.onnx", "--budget", "5ms", "--data", write_data(tmp_path / "data.npz"))
    assert ended.exit_code == 2
    assert "Nonesuch" in ended.stderr
    assert str(tmp_path / "m.onnx") in ended.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--budget", "5"), "a time above 0 with its unit"),
        (("--budget", "5ms", "--max-accuracy-drop", "two"), "a share such as 0.5%"),
        (("--budget", "5ms", "--device", "tpu"), "cpu or gpu"),
    ],
)
def test_wrong_options_are_named(words: tuple[str, ...], text: str, tmp_path: Path) -> None:
    ended = run(tmp_path / "m.onnx", "--data", tmp_path / "d.npz", *words)
    assert ended.exit_code == 2
    assert text in ended.stderr


def test_an_existing_output_is_refused(tmp_path: Path) -> None:
    model, data = write_mlp(tmp_path / "m.onnx"), write_data(tmp_path / "data.npz")
    ended = run(model, "--budget", "5ms", "--data", data, "--output", tmp_path)
    assert ended.exit_code == 2
    assert "does not exist yet" in ended.stderr


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_command_leaves_no_files_and_no_processes(repository: Path, how: signal.Signals) -> None:
    before = files(repository)
    temporary = repository.parent / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "isochrone", "optimize", "small", "--model-repository", str(repository)]
    command += ["--budget", "0.001us", "--data", str(repository.parent / "data.npz")]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    process.stderr.readline()  # the first trial has ended
    assert list(temporary.glob("isochrone-*"))
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, how)
    process.communicate()
    assert process.returncode == 128 + how
    assert not list(temporary.glob("isochrone-*"))
    # A child that was just being started ends by itself, a moment after the command.
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert files(repository) == before


@pytest.mark.long
def test_a_killed_command_leaves_the_repository_as_it_was(repository: Path) -> None:
    before = files(repository)
    command = [sys.executable, "-m", "isochrone", "optimize", "small", "--model-repository", str(repository)]
    command += ["--budget", "0.001us", "--data", str(repository.parent / "data.npz")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()  # the first trial has ended
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    ends = time.monotonic() + 30
    while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children):
        assert time.monotonic() < ends, "a child outlived the command"
        time.sleep(0.05)
    assert files(repository) == before
