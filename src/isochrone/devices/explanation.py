"""Why a GPU that a model asks for cannot be used, in one sentence with the remedy. Pure; ``gpu_facts`` reads the facts.

The order of the questions is that of the layers: the driver, the GPUs that it shows to this process, the runtime that
computes on them.
"""

from __future__ import annotations

from dataclasses import dataclass

CUDA_PROVIDER = "CUDAExecutionProvider"


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The driver and its GPUs, as this process sees them."""

    #: Whether libcuda.so.1 was loaded.
    is_loaded: bool
    #: What the driver says against its use, such as CUDA_ERROR_NO_DEVICE; "": nothing.
    error: str = ""
    #: The newest CUDA version that it supports: 13020 is 13.2; 0: not known.
    cuda_version: int = 0
    #: GPUs that CUDA shows to this process.
    device_count: int = 0
    #: CUDA_VISIBLE_DEVICES; None: not set.
    visible_devices: str | None = None
    #: GPUs of the machine, by the kernel's module; 0 also where that is not loaded.
    machine_count: int = 0
    #: Whether one of them is divided by MIG.
    has_mig: bool = False
    #: ``Default``, ``Exclusive_Process`` or ``Prohibited`` of the GPU that is asked for; "": not known.
    compute_mode: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """A runtime that computes on GPUs: torch or onnxruntime."""

    name: str
    #: "": not installed.
    version: str = ""
    #: torch: the CUDA version that it was built for; "": without CUDA.
    built_for: str = ""
    #: torch: what it says against the use of CUDA; "": nothing, or it was not asked.
    error: str = ""
    #: onnxruntime: its execution providers.
    providers: tuple[str, ...] = ()


#: What the driver's errors mean, and the remedy.
_DRIVER_ERRORS = {
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": (
        "the kernel's NVIDIA module and libcuda are of different versions; restart the machine, or reload the module"
    ),
    "CUDA_ERROR_SYSTEM_NOT_READY": (
        "the GPUs are connected by NVSwitch, whose service does not run; systemctl start nvidia-fabricmanager"
    ),
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": (
        "a forward-compatibility libcuda is loaded, which this GPU does not support; remove the package cuda-compat"
    ),
    "CUDA_ERROR_UNKNOWN": "the module nvidia_uvm may be missing; modprobe nvidia-uvm, or nvidia-modprobe -u",
    "CUDA_ERROR_OPERATING_SYSTEM": "a device file may not be opened; look at the permissions of /dev/nvidia*",
}


def explain(driver: DriverFacts, runtime: RuntimeFacts | None, device: int) -> str:
    """Why ``runtime`` cannot use GPU ``device``; "": nothing is known against it."""
    return _of_driver(driver) or _of_device(driver, device) or (_of_runtime(driver, runtime) if runtime else "")


def _of_driver(driver: DriverFacts) -> str:
    if not driver.is_loaded:
        if driver.machine_count:
            return (
                f"the machine has {_gpus(driver.machine_count)}, but libcuda.so.1 cannot be loaded; in a container,"
                " start it with the NVIDIA runtime (--gpus all), otherwise install the driver's libraries"
            )
        return (
            "there is no NVIDIA driver (libcuda.so.1 cannot be loaded); install it, or run the model on the CPU with"
            " KIND_CPU"
        )
    if driver.error == "CUDA_ERROR_NO_DEVICE" or (not driver.error and not driver.device_count):
        return _no_device(driver)
    if driver.error:
        meaning = _DRIVER_ERRORS.get(driver.error, "nvidia-smi may say more")
        return f"the NVIDIA driver does not start ({driver.error}): {meaning}"
    return ""


def _no_device(driver: DriverFacts) -> str:
    if driver.visible_devices is not None and driver.machine_count:
        return (
            f"CUDA_VISIBLE_DEVICES={driver.visible_devices!r} hides the machine's {_gpus(driver.machine_count)}; name"
            " the numbers of those to use, or unset it"
        )
    if driver.has_mig:
        return (
            "the GPU is in MIG mode without an instance that this process may use; create one with nvidia-smi mig and"
            " name it in CUDA_VISIBLE_DEVICES=MIG-…"
        )
    if driver.machine_count:
        return (
            f"the machine has {_gpus(driver.machine_count)}, but the driver shows none to this process; in a container,"
            " start it with --gpus all"
        )
    return "the NVIDIA driver finds no GPU; nvidia-smi -L lists those that it knows"


def _of_device(driver: DriverFacts, device: int) -> str:
    if device >= driver.device_count:
        shown = "GPU 0" if driver.device_count == 1 else f"GPUs 0 to {driver.device_count - 1}"
        text = f"GPU {device} does not exist for this process, which sees {shown}"
        if driver.visible_devices is not None:
            return (
                f"{text}: CUDA_VISIBLE_DEVICES={driver.visible_devices!r} chooses and renumbers them; change it or gpus"
            )
        if driver.has_mig:
            return f"{text}: with MIG a process sees one instance, as number 0; change gpus"
        return f"{text}; change gpus in instance_group"
    if driver.compute_mode == "Prohibited":
        return f"GPU {device} admits no process (compute mode Prohibited); nvidia-smi -i {device} -c DEFAULT"
    return ""


def _of_runtime(driver: DriverFacts, runtime: RuntimeFacts) -> str:
    if not runtime.version:
        package = "onnxruntime-gpu" if runtime.name == "onnxruntime" else runtime.name
        return f"{runtime.name} is not installed; pip install {package}"
    called = f"{runtime.name} {runtime.version}"
    if runtime.name == "onnxruntime":
        if CUDA_PROVIDER in runtime.providers:
            return ""
        return (
            f"{called} has no {CUDA_PROVIDER} (it has {', '.join(runtime.providers) or 'none'}); pip uninstall"
            " onnxruntime, then pip install onnxruntime-gpu"
        )
    if not runtime.built_for:
        return f"{called} was built without CUDA; install a build with CUDA instead of it"
    supported, needed = driver.cuda_version // 1000, _major(runtime.built_for)
    # Within one major version, an older driver runs newer builds.
    if supported and needed > supported:
        return (
            f"{called} was built for CUDA {runtime.built_for}, and the driver supports CUDA"
            f" {_version(driver.cuda_version)}; update the driver, or install {runtime.name} for CUDA {supported}"
        )
    if runtime.error:
        text = f"{called} cannot use the GPU: {runtime.error}"
        if driver.compute_mode == "Exclusive_Process":
            return f"{text}; its compute mode admits one process: end the other one, or nvidia-smi -c DEFAULT"
        return text
    return ""


def _major(version: str) -> int:
    """The major part of a version; 0: not known."""
    major = version.partition(".")[0]
    return int(major) if major.isdecimal() else 0


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
