"""A search on a machine with a GPU: used if it was asked for and can be, else one line says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.devices.explanation import DriverFacts, RuntimeFacts
from isochrone.errors import ConfigError
from isochrone.optimize.searching.candidate import RunSettings
from isochrone.optimize.transforming.facts import MachineFacts, ModelFacts
from isochrone.optimize.trials import gpus
from isochrone.optimize.trials.gpus import check_gpu, unused_gpu
from isochrone.optimize.trials.workbench import offered
from optimizer_models import write_data, write_mlp

NONE = DriverFacts(False)
ONE = DriverFacts(True, cuda_version=13020, device_count=1, machine_count=1)
CPU_ONLY = RuntimeFacts("onnxruntime", "1.31.1", providers=("AzureExecutionProvider", "CPUExecutionProvider"))
WITH_CUDA = RuntimeFacts("onnxruntime", "1.31.1", providers=("CUDAExecutionProvider", "CPUExecutionProvider"))


def test_a_machine_without_a_gpu_is_told_nothing() -> None:
    assert unused_gpu(NONE, CPU_ONLY) == ""
    with pytest.raises(ConfigError, match=r"--device: .*there is no NVIDIA driver"):
        check_gpu("--device", NONE, CPU_ONLY)


def test_a_runtime_without_cuda_is_named_with_the_remedy() -> None:
    line = unused_gpu(ONE, CPU_ONLY)
    assert "onnxruntime 1.31.1 has no CUDAExecutionProvider" in line
    assert "pip install onnxruntime-gpu" in line
    assert "\n" not in line
    with pytest.raises(ConfigError, match=r"m/config\.pbtxt: .*has no CUDAExecutionProvider"):
        check_gpu("m/config.pbtxt", ONE, CPU_ONLY)


def test_a_usable_gpu_that_was_not_asked_for_names_the_flag() -> None:
    assert "--device gpu" in unused_gpu(ONE, WITH_CUDA)
    check_gpu("--device", ONE, WITH_CUDA)


@pytest.mark.parametrize(("on_gpu", "tried"), [(True, True), (False, False)])
def test_fp16_is_tried_on_a_gpu_and_other_runtimes_are_not(on_gpu: bool, tried: bool) -> None:
    model = ModelFacts(frozenset({"Gemm", "Relu"}), 17, True, True)
    machine = MachineFacts(frozenset(), 4, on_gpu, True)
    offer, refused = offered(model, machine, RunSettings(), all_settings=True)
    assert ("fp16" in offer.precision) is tried
    assert ("int8-dynamic" in offer.precision) is not on_gpu
    assert ("tensorrt" in refused) is on_gpu
    assert (offer.settings == (RunSettings(),)) is on_gpu


@pytest.fixture
def gpu_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "read_driver", lambda: ONE)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(CPU_ONLY.providers))


def optimize(folder: Path, *words: object) -> Any:
    model, data = write_mlp(folder / "small.onnx"), write_data(folder / "data.npz")
    given = ["optimize", model, "--data", data, "--budget", "1s", "--seconds", 1, "--json", *words]
    return CliRunner().invoke(app, list(map(str, given)))


@pytest.mark.usefixtures("gpu_machine")
def test_the_command_works_beside_a_gpu_that_onnxruntime_cannot_use(tmp_path: Path) -> None:
    ended = optimize(tmp_path)
    assert ended.exit_code == 0, ended.output
    document = json.loads(ended.stdout)
    assert document["machine"]["device"] == "cpu"
    assert "has no CUDAExecutionProvider" in document["not_tried"]["gpu"]


@pytest.mark.usefixtures("gpu_machine")
def test_a_gpu_that_was_asked_for_is_an_error(tmp_path: Path) -> None:
    ended = optimize(tmp_path, "--device", "gpu", "--output", tmp_path / "fast")
    assert ended.exit_code == 2
    assert "has no CUDAExecutionProvider" in ended.stderr
    assert not (tmp_path / "fast").exists()
