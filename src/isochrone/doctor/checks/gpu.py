"""Checks of NVIDIA GPUs: persistence, MIG, MPS, and whether the installed runtimes can use them."""

from __future__ import annotations

from isochrone.doctor.checks.check import Check, unknown
from isochrone.doctor.facts import Facts, Gpu, Measured, Unknown
from isochrone.doctor.findings import Finding, Severity

_PERSISTENCE_DOC = "https://docs.nvidia.com/deploy/driver-persistence/"
_MIG_DOC = "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"
_MPS_DOC = "https://docs.nvidia.com/deploy/mps/"
_RUNTIMES_DOC = "https://docs.nvidia.com/deploy/cuda-compatibility/"
_NONE = "no NVIDIA GPU is visible"


def gpu_persistence(facts: Facts, measured: Measured) -> Finding:
    gpus = facts.gpu.gpus
    if isinstance(gpus, Unknown):
        return unknown("gpu_persistence", gpus, source=_PERSISTENCE_DOC)
    for gpu in gpus:
        if isinstance(gpu.persistence, Unknown):
            return unknown("gpu_persistence", gpu.persistence, source=_PERSISTENCE_DOC)
    off = [gpu for gpu in gpus if gpu.persistence is False]
    if not off:
        found = f"persistence mode is on for {_named(gpus)}" if gpus else _NONE
        return Finding("gpu_persistence", Severity.OK, found, source=_PERSISTENCE_DOC)
    return Finding(
        "gpu_persistence",
        Severity.COSTS,
        f"persistence mode is off for {_named(off)}",
        "When the last process leaves the GPU, the driver shuts it down; the next worker that starts waits 1 to 3 s per"
        " GPU, and clocks and other settings are lost.",
        # NVIDIA prefers the daemon, which is a service of the machine.
        by_hand=("systemctl enable --now nvidia-persistenced", "nvidia-smi -pm 1"),
        source=_PERSISTENCE_DOC,
    )


def gpu_mig(facts: Facts, measured: Measured) -> Finding:
    gpus = facts.gpu.gpus
    if isinstance(gpus, Unknown):
        return unknown("gpu_mig", gpus, source=_MIG_DOC)
    for gpu in gpus:
        if isinstance(gpu.mig, Unknown):
            return unknown("gpu_mig", gpu.mig, source=_MIG_DOC)
    divided = [gpu for gpu in gpus if gpu.mig is True]
    if not divided:
        found = f"MIG is off for {_named(gpus)}" if gpus else _NONE
        return Finding("gpu_mig", Severity.OK, found, source=_MIG_DOC)
    return Finding(
        "gpu_mig",
        Severity.ADVICE,
        f"MIG is on for {_named(divided)}",
        "A process sees one MIG instance, with its share of cores and memory: a worker for each instance is needed to"
        " use the whole GPU, and a single model has only that share.",
        by_hand=("nvidia-smi -L", "CUDA_VISIBLE_DEVICES=MIG-… isochrone serve MODELS"),
        source=_MIG_DOC,
    )


def gpu_mps(facts: Facts, measured: Measured) -> Finding:
    gpus, mps = facts.gpu.gpus, facts.gpu.mps
    if isinstance(gpus, Unknown):
        return unknown("gpu_mps", gpus, source=_MPS_DOC)
    if not gpus:
        return Finding("gpu_mps", Severity.OK, _NONE, source=_MPS_DOC)
    if isinstance(mps, Unknown):
        return unknown("gpu_mps", mps, source=_MPS_DOC)
    closed = [gpu for gpu in gpus if gpu.compute_mode in ("Exclusive_Process", "Prohibited")]
    if closed and not mps:
        return Finding(
            "gpu_mps",
            Severity.ADVICE,
            f"compute mode {closed[0].compute_mode} without MPS for {_named(closed)}",
            "Such a GPU admits one process at most: a second worker on it cannot start, nor a new version in a process"
            " of its own beside the old one.",
            by_hand=("nvidia-cuda-mps-control -d", "nvidia-smi -c DEFAULT"),
            source=_MPS_DOC,
        )
    shared = [gpu for gpu in gpus if not isinstance(gpu.processes, Unknown) and gpu.processes > 1]
    if shared and not mps:
        return Finding(
            "gpu_mps",
            Severity.ADVICE,
            f"several processes share {_named(shared)} without MPS",
            "The GPU runs the kernels of one process at a time and changes between them by time slices. With MPS they"
            " run side by side.",
            by_hand=("nvidia-cuda-mps-control -d",),
            source=_MPS_DOC,
        )
    found = "MPS runs" if mps else "MPS does not run; no GPU is shared by several processes"
    return Finding("gpu_mps", Severity.OK, found, source=_MPS_DOC)


def gpu_runtimes(facts: Facts, measured: Measured) -> Finding:
    gpus, unusable = facts.gpu.gpus, facts.gpu.unusable
    if isinstance(gpus, Unknown):
        return unknown("gpu_runtimes", gpus, source=_RUNTIMES_DOC)
    if not unusable:
        found = f"the installed runtimes can use {_named(gpus)}" if gpus else _NONE
        return Finding("gpu_runtimes", Severity.OK, found, source=_RUNTIMES_DOC)
    return Finding(
        "gpu_runtimes",
        Severity.ADVICE,
        "; ".join(unusable),
        "Models with KIND_GPU of such a runtime are not loaded.",
        source=_RUNTIMES_DOC,
    )


def _named(gpus: tuple[Gpu, ...] | list[Gpu]) -> str:
    return ", ".join(f"GPU {gpu.index} ({gpu.name})" for gpu in gpus)


CHECKS: tuple[Check, ...] = (gpu_persistence, gpu_mig, gpu_mps, gpu_runtimes)
