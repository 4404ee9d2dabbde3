"""``isochrone profile``: real models of onnxruntime, torch and Python, what is written, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from profiled_models import write_crashing, write_linear, write_product, write_variable
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.models.repository.repository import Repository
from sample_models import write_config, write_models, write_python


def run(repository: Path, model: str, *words: str) -> Any:
    given = ["profile", model, "--model-repository", str(repository), "--seconds", "20", *words]
    return CliRunner().invoke(app, given)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def fails(repository: Path, model: str, *words: str) -> str:
    """The message, in one line; nothing was written."""
    before = contents(repository)
    result = run(repository, model, "--write", *words)
    assert result.exit_code == 2, result.output
    assert contents(repository) == before
    assert "Traceback" not in result.stderr
    message: str = result.stderr.strip().splitlines()[-1]
    assert message.startswith("isochrone profile: "), result.stderr
    return message


@pytest.mark.long
def test_an_onnx_model_is_measured_and_its_config_written(tmp_path: Path) -> None:
    directory = write_product(tmp_path, more='parameters { key: "deadline_ms" value { string_value: "50" } }')
    old = (directory / "config.pbtxt").read_bytes()
    page = tmp_path / "page.html"
    result = run(tmp_path, "product", "--slo", "1s", "--write", "--json", "--report", str(page))
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    found = document["recommended"]
    assert document["keeps_slo"] is True
    assert found in document["points"]
    assert {point["batch"] for point in document["points"]} >= {1, 8}
    assert all(point["rows_per_second"] > 0 and point["memory_bytes"] > 0 for point in document["points"])
    assert {"MatMul", "Relu"} & {each["operator"] for each in document["operators"]}
    assert sum(each["share"] for each in document["operators"]) == pytest.approx(1, abs=1e-4)
    # What a worker now reads.
    config = Repository([tmp_path]).read("product").config
    assert config.instance_group[0].count == found["instances"]
    assert config.parameters["intra_op_thread_count"].string_value == str(found["threads"])
    assert list(config.dynamic_batching.preferred_batch_size) == ([found["batch"]] if found["batch"] > 1 else [])
    assert config.max_batch_size == 8
    assert config.parameters["deadline_ms"].string_value == "50"
    assert (directory / "config.pbtxt.before-profile").read_bytes() == old
    assert sorted(path.name for path in directory.iterdir()) == ["1", "config.pbtxt", "config.pbtxt.before-profile"]
    assert Repository([tmp_path]).scan()["product"].versions == (1,)
    html = page.read_text()
    assert html.count("<svg") == 3
    assert "SLO 1000 ms" in html
    assert "http" not in html


@pytest.mark.long
def test_a_torch_model_without_write_stays_as_it_is(tmp_path: Path) -> None:
    write_linear(tmp_path)
    before = contents(tmp_path)
    result = run(tmp_path, "linear")
    assert result.exit_code == 0, result.output
    assert "Hottest operators" in result.stdout
    assert "aten::" in result.stdout
    assert "intra_op_thread_count" in result.stdout
    assert "Nothing was written: --write does." in result.stdout
    assert contents(tmp_path) == before


@pytest.mark.long
def test_a_crash_at_a_batch_size_leaves_the_smaller_ones(tmp_path: Path) -> None:
    write_crashing(tmp_path, at_rows=8)
    result = run(tmp_path, "crashing", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert all(point["batch"] < 8 for point in document["points"])
    assert "crashed (SIGSEGV)" in document["failures"][0]["message"]
    assert document["failures"][0]["batch"] == 8


@pytest.mark.long
def test_an_slo_that_nothing_keeps_is_a_failure_and_writes_nothing(tmp_path: Path) -> None:
    directory = write_product(tmp_path)
    before = contents(directory)
    result = run(tmp_path, "product", "--slo", "0.00001ms", "--write")
    assert result.exit_code == 1
    assert "No configuration keeps the SLO" in result.stdout
    assert "Nothing was written." in result.stdout
    assert contents(directory) == before


def test_a_model_that_always_crashes_is_an_error(tmp_path: Path) -> None:
    write_crashing(tmp_path, at_rows=1)
    message = fails(tmp_path, "crashing")
    assert "model 'crashing' version 1: the process that ran it crashed (SIGSEGV)" in message


def test_a_corrupt_model_is_an_error(tmp_path: Path) -> None:
    directory = write_product(tmp_path)
    data = (directory / "1" / "model.onnx").read_bytes()
    (directory / "1" / "model.onnx").write_bytes(data[: len(data) // 2])
    assert "onnxruntime cannot load this file" in fails(tmp_path, "product")


def test_a_model_that_does_not_fit_into_memory_is_not_loaded(tmp_path: Path) -> None:
    directory = write_product(tmp_path)
    with (directory / "1" / "weights.bin").open("wb") as file:
        file.truncate(1 << 42)  # a hole: it takes no room on the disk
    before = (directory / "config.pbtxt").read_bytes()
    result = run(tmp_path, "product", "--write")
    assert result.exit_code == 2
    assert "expected files that fit into memory" in result.stderr
    assert "given 4,096.00 GiB" in result.stderr
    assert (directory / "config.pbtxt").read_bytes() == before


def test_what_cannot_be_profiled_is_refused_with_what_to_change(tmp_path: Path) -> None:
    write_product(tmp_path)
    write_variable(tmp_path)
    write_product(tmp_path, "on_gpu", more="instance_group [ { kind: KIND_GPU } ]")
    (tmp_path / "empty").mkdir()
    write_config(tmp_path / "empty", 'platform: "onnxruntime_onnx"')
    assert "did you mean 'product'?" in fails(tmp_path, "produkt")
    assert "at least one version" in fails(tmp_path, "empty")
    assert "versions" in fails(tmp_path, "product", "--version", "7")
    assert "--shape x:128" in fails(tmp_path, "variable")
    assert "an input of model 'variable' ('x')" in fails(tmp_path, "variable", "--shape", "z:3")
    assert "that fit [8], without the batch" in fails(tmp_path, "product", "--shape", "x:4")
    assert "NAME:SIZE,SIZE" in fails(tmp_path, "variable", "--shape", "x")
    assert "--slo: expected a time above 0" in fails(tmp_path, "product", "--slo", "soon")
    assert "KIND_CPU" in fails(tmp_path, "on_gpu")
    assert "--report: expected a file in a directory" in fails(
        tmp_path, "product", "--report", str(tmp_path / "missing" / "page.html")
    )
    missing = CliRunner().invoke(app, ["profile", "product", "--model-repository", str(tmp_path / "none")])
    assert missing.exit_code == 2
    assert "expected a directory" in missing.stderr


def test_ensembles_and_sequences_are_refused(tmp_path: Path) -> None:
    write_models(tmp_path, "pipeline")
    assert "profile the models of its steps" in fails(tmp_path, "pipeline")
    write_product(tmp_path, "remembering", more="sequence_batching { }")
    assert "a profile sends no sequences" in fails(tmp_path, "remembering")


@pytest.mark.long
def test_variable_dims_take_the_given_shape(tmp_path: Path) -> None:
    write_variable(tmp_path)
    result = run(tmp_path, "variable", "--shape", "x:16", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["points"]


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_command_leaves_the_repository_and_no_process(tmp_path: Path, how: signal.Signals) -> None:
    write_python(
        tmp_path / "sleeping",
        """
        import pathlib, tempfile, time

        class Model:
            def infer(self, inputs):
                tempfile.mkdtemp(prefix="isochrone-")
                pathlib.Path(__file__).parents[2].joinpath("started").touch()
                time.sleep(0.2)
                return {"y": inputs["x"]}
        """,
    )
    tensors = '{ name: "NAME" data_type: TYPE_FP32 dims: [ 8 ] }'
    inputs, outputs = tensors.replace("NAME", "x"), tensors.replace("NAME", "y")
    write_config(
        tmp_path / "sleeping", f'backend: "python"\nmax_batch_size: 8\ninput [ {inputs} ]\noutput [ {outputs} ]'
    )
    before = contents(tmp_path / "sleeping")
    words = [sys.executable, "-m", "isochrone", "profile", "sleeping", "--model-repository", str(tmp_path), "--write"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as command:
        _until(lambda: (tmp_path / "started").exists())
        children = psutil.Process(command.pid).children(recursive=True)
        assert children
        os.kill(command.pid, how)
        command.wait(30)
    assert command.returncode == (-signal.SIGKILL if how is signal.SIGKILL else 128 + how)
    assert contents(tmp_path / "sleeping") == before
    assert how is signal.SIGKILL or not list(temporary.glob("isochrone-*"))
    _until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))


def _until(holds: Any) -> None:
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within 30 s")
