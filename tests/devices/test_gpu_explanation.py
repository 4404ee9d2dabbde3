"""Why a GPU cannot be used: one sentence for every state of driver, GPUs and runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_cuda import FakeDriver
from isochrone.devices import gpu_facts
from isochrone.devices.cuda.interface import CudaError
from isochrone.devices.explanation import DriverFacts, RuntimeFacts, explain
from isochrone.devices.gpu_facts import explain_missing_gpu, read_driver, read_runtime

ONE = DriverFacts(True, cuda_version=13020, device_count=1, machine_count=1)
TORCH = RuntimeFacts("torch", "2.11.0", "13.0")
ONNX = RuntimeFacts("onnxruntime", "1.31.1", providers=("CUDAExecutionProvider", "CPUExecutionProvider"))
FAILED = replace(ONE, device_count=0, cuda_version=0)


@pytest.mark.parametrize("runtime", [TORCH, ONNX, None])
def test_nothing_is_said_of_a_gpu_that_works(runtime: RuntimeFacts | None) -> None:
    assert explain(ONE, runtime, 0) == ""
    assert explain(replace(ONE, compute_mode="Exclusive_Process"), runtime, 0) == ""


@pytest.mark.parametrize(
    ("driver", "device", "words"),
    [
        (DriverFacts(False), 0, ("no NVIDIA driver", "install it")),
        (DriverFacts(False, machine_count=8), 0, ("the machine has 8 GPUs, but libcuda", "--gpus all")),
        (replace(FAILED, error="CUDA_ERROR_NO_DEVICE", machine_count=0), 0, ("finds no GPU", "nvidia-smi -L")),
        (replace(FAILED, machine_count=2), 0, ("2 GPUs, but the driver shows none", "--gpus all")),
        (
            replace(FAILED, error="CUDA_ERROR_NO_DEVICE", visible_devices=""),
            0,
            ("CUDA_VISIBLE_DEVICES='' hides the machine's 1 GPU", "unset it"),
        ),
        (replace(FAILED, has_mig=True), 0, ("MIG mode without an instance", "CUDA_VISIBLE_DEVICES=MIG-")),
        (replace(FAILED, error="CUDA_ERROR_SYSTEM_NOT_READY"), 0, ("(CUDA_ERROR_SYSTEM_NOT_READY)", "fabricmanager")),
        (replace(FAILED, error="CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), 0, ("different versions", "restart")),
        (replace(FAILED, error="CUDA_ERROR_OF_TOMORROW"), 0, ("(CUDA_ERROR_OF_TOMORROW)", "nvidia-smi")),
        (ONE, 1, ("GPU 1 does not exist for this process, which sees GPU 0", "change gpus")),
        (replace(ONE, device_count=4), 7, ("which sees GPUs 0 to 3",)),
        (replace(ONE, visible_devices="3"), 3, ("which sees GPU 0", "CUDA_VISIBLE_DEVICES='3' chooses and renumbers")),
        (replace(ONE, has_mig=True), 1, ("with MIG a process sees one instance",)),
        (replace(ONE, compute_mode="Prohibited"), 0, ("admits no process", "nvidia-smi -i 0 -c DEFAULT")),
    ],
)
def test_drivers_and_devices(driver: DriverFacts, device: int, words: tuple[str, ...]) -> None:
    for runtime in (TORCH, ONNX, None):
        sentence = explain(driver, runtime, device)
        for each in words:
            assert each in sentence
        assert "\n" not in sentence


@pytest.mark.parametrize(
    ("driver", "runtime", "words"),
    [
        (ONE, RuntimeFacts("torch"), ("torch is not installed; pip install torch",)),
        (ONE, RuntimeFacts("onnxruntime"), ("pip install onnxruntime-gpu",)),
        (ONE, replace(TORCH, version="2.13.0+cpu", built_for=""), ("torch 2.13.0+cpu was built without CUDA",)),
        (
            replace(ONE, cuda_version=12040),
            TORCH,
            ("torch 2.11.0 was built for CUDA 13.0, and the driver supports CUDA 12.4", "for CUDA 12"),
        ),
        (ONE, replace(TORCH, error="CUDA error: out of memory"), ("torch 2.11.0 cannot use the GPU: CUDA error: out",)),
        (
            replace(ONE, compute_mode="Exclusive_Process"),
            replace(TORCH, error="all CUDA-capable devices are busy"),
            ("devices are busy; its compute mode admits one process", "nvidia-smi -c DEFAULT"),
        ),
        (
            ONE,
            replace(ONNX, providers=("CPUExecutionProvider",)),
            ("has no CUDAExecutionProvider (it has CPUExecutionProvider)", "pip install onnxruntime-gpu"),
        ),
    ],
)
def test_runtimes(driver: DriverFacts, runtime: RuntimeFacts, words: tuple[str, ...]) -> None:
    for each in words:
        assert each in explain(driver, runtime, 0)


def test_an_older_driver_of_the_same_major_version_is_no_reason() -> None:
    assert explain(replace(ONE, cuda_version=13000), replace(TORCH, built_for="13.2"), 0) == ""


def test_facts_of_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(gpu_facts, "_nvml_facts", lambda device: (True, "Default"))
    (tmp_path / "0000:01:00.0").mkdir()
    facts = read_driver(0, lambda: FakeDriver(devices=2), tmp_path)
    assert facts == DriverFacts(True, "", 13020, 2, "0,1", 1, True, "Default")


@pytest.mark.parametrize(("call", "is_loaded"), [("libcuda.so.1", False), ("cuInit", True)])
def test_facts_of_a_driver_that_fails(tmp_path: Path, call: str, is_loaded: bool) -> None:
    def load() -> Any:
        raise CudaError(call, "CUDA_ERROR_NO_DEVICE")

    facts = read_driver(0, load, tmp_path / "missing")
    assert (facts.is_loaded, facts.error, facts.device_count, facts.machine_count) == (
        is_loaded,
        "CUDA_ERROR_NO_DEVICE",
        0,
        0,
    )


def test_facts_of_runtimes() -> None:
    torch, onnxruntime = read_runtime("torch"), read_runtime("onnxruntime")
    assert torch.name == "torch"
    assert torch.version
    assert "CPUExecutionProvider" in onnxruntime.providers


def test_a_torch_that_is_loaded_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(gpu_facts.runpy, "run_path", lambda path: {"__version__": "2.11.0", "cuda": "13.0"})

    def init() -> None:
        raise RuntimeError("CUDA driver initialization failed\nand more")

    monkeypatch.setattr(torch.cuda, "init", init)
    assert read_runtime("torch").error == "CUDA driver initialization failed"


def test_there_is_always_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_facts, "read_driver", lambda device: ONE)
    monkeypatch.setattr(gpu_facts, "read_runtime", lambda name: TORCH)
    assert explain_missing_gpu(0, "torch").startswith("GPU 0 is there for torch")
    assert explain_missing_gpu(1, "torch").startswith("GPU 1 does not exist")
