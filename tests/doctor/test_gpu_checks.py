"""Checks of GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from doctor_machine import facts_of
from isochrone.doctor.checks import gpu
from isochrone.doctor.checks.check import Check
from isochrone.doctor.facts import Facts, Gpu, GpuFacts, Measured, Unknown
from isochrone.doctor.findings import Severity

NOTHING = Measured()
IDLE = Gpu(0, "NVIDIA H200", True, False, 0, "Default")


def with_gpus(root: Path, *gpus: Gpu, mps: bool | Unknown = False) -> Facts:
    return replace(facts_of(root), gpu=GpuFacts(gpus, mps))


@pytest.mark.parametrize("check", gpu.CHECKS)
def test_no_gpu_and_an_idle_one_are_no_finding(check: Check, tmp_path: Path) -> None:
    assert check(with_gpus(tmp_path), NOTHING).found == "no NVIDIA GPU is visible"
    for facts in (with_gpus(tmp_path), with_gpus(tmp_path, IDLE)):
        assert check(facts, NOTHING).severity is Severity.OK


@pytest.mark.parametrize("check", gpu.CHECKS)
def test_a_driver_that_does_not_answer_is_unknown(check: Check, tmp_path: Path) -> None:
    facts = replace(facts_of(tmp_path), gpu=GpuFacts(Unknown("NVML: Driver Not Loaded"), False))
    finding = check(facts, NOTHING)
    assert (finding.severity, finding.found) == (Severity.UNKNOWN, "NVML: Driver Not Loaded")


@pytest.mark.parametrize(
    ("check", "changed"), [(gpu.gpu_persistence, "persistence"), (gpu.gpu_mig, "mig"), (gpu.gpu_mps, "mps")]
)
def test_a_single_value_that_cannot_be_read_is_unknown(check: Check, changed: str, tmp_path: Path) -> None:
    reason = Unknown("no permission")
    card = IDLE if changed == "mps" else replace(IDLE, **{changed: reason})
    facts = with_gpus(tmp_path, card, mps=reason if changed == "mps" else False)
    assert check(facts, NOTHING).severity is Severity.UNKNOWN


def test_persistence(tmp_path: Path) -> None:
    off = replace(IDLE, index=1, persistence=False)
    finding = gpu.gpu_persistence(with_gpus(tmp_path, IDLE, off), NOTHING)
    assert finding.severity is Severity.COSTS
    assert finding.found == "persistence mode is off for GPU 1 (NVIDIA H200)"
    assert "nvidia-smi -pm 1" in finding.commands


def test_mig(tmp_path: Path) -> None:
    finding = gpu.gpu_mig(with_gpus(tmp_path, replace(IDLE, mig=True)), NOTHING)
    assert finding.severity is Severity.ADVICE
    assert finding.commands


def test_a_shared_gpu_needs_mps(tmp_path: Path) -> None:
    shared = replace(IDLE, processes=2)
    finding = gpu.gpu_mps(with_gpus(tmp_path, shared), NOTHING)
    assert finding.severity is Severity.ADVICE
    assert finding.commands == ("nvidia-cuda-mps-control -d",)
    assert gpu.gpu_mps(with_gpus(tmp_path, shared, mps=True), NOTHING).severity is Severity.OK


def test_an_exclusive_gpu_needs_mps_too(tmp_path: Path) -> None:
    exclusive = replace(IDLE, compute_mode="Exclusive_Process")
    assert gpu.gpu_mps(with_gpus(tmp_path, exclusive), NOTHING).severity is Severity.ADVICE
    assert gpu.gpu_mps(with_gpus(tmp_path, exclusive, mps=True), NOTHING).severity is Severity.OK


def test_runtimes_that_cannot_use_a_gpu(tmp_path: Path) -> None:
    facts = with_gpus(tmp_path, IDLE)
    assert gpu.gpu_runtimes(facts, NOTHING).found == "the installed runtimes can use GPU 0 (NVIDIA H200)"
    reasons = ("torch 2.13.0+cpu was built without CUDA", "onnxruntime 1.31 has no CUDAExecutionProvider")
    finding = gpu.gpu_runtimes(replace(facts, gpu=replace(facts.gpu, unusable=reasons)), NOTHING)
    assert finding.severity is Severity.ADVICE
    assert finding.found == "; ".join(reasons)
