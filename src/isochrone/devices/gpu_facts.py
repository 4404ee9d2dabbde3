"""Reads what ``explanation`` needs: the driver, the machine's GPUs, and the runtimes that compute on them.

For loads that have failed and for ``isochrone doctor``; nothing here is on the way of a request.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from isochrone.devices.cuda.interface import CudaDriver, CudaError
from isochrone.devices.cuda.library import LIBRARY, CudaLibrary
from isochrone.devices.explanation import DriverFacts, RuntimeFacts, explain

#: What can compute on a GPU for a model.
RUNTIMES = ("torch", "onnxruntime")

#: One directory for each GPU, by the kernel's module.
_KERNEL_GPUS = Path("/proc/driver/nvidia/gpus")
_COMPUTE_MODES = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}


def explain_missing_gpu(device: int, runtime: str) -> str:
    """One sentence on why ``runtime``, torch or onnxruntime, cannot use GPU ``device``, with the remedy."""
    reason = explain(read_driver(device), read_runtime(runtime), device)
    return reason or f"GPU {device} is there for {runtime} as far as the driver says; nvidia-smi may say more"


def read_driver(
    device: int = 0, load: Callable[[], CudaDriver] = CudaLibrary, kernel: Path = _KERNEL_GPUS
) -> DriverFacts:
    has_mig, mode = _nvml_facts(device)
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(list(kernel.iterdir())) if kernel.is_dir() else 0
    version = devices = 0
    is_loaded, problem = True, ""
    try:
        driver = load()
        version, devices = driver.version(), driver.device_count()
    except CudaError as error:
        is_loaded, problem = error.call != LIBRARY, error.name
    return DriverFacts(is_loaded, problem, version, devices, setting, count, has_mig, mode)


def _nvml_facts(device: int) -> tuple[bool, str]:
    """Whether a GPU is divided by MIG, and the compute mode of one; as far as NVML says."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return False, ""
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        mode = _asked(pynvml.nvmlDeviceGetComputeMode, handles[device]) if device < len(handles) else None
        divided = any((_asked(pynvml.nvmlDeviceGetMigMode, handle) or (0,))[0] == 1 for handle in handles)
        return divided, _COMPUTE_MODES.get(mode, "") if mode is not None else ""
    except Exception:
        return False, ""
    finally:
        pynvml.nvmlShutdown()


def _asked(function: Callable[[Any], Any], handle: Any) -> Any:
    try:
        return function(handle)
    except Exception:  # not supported by this GPU
        return None


def read_runtime(name: str) -> RuntimeFacts:
    return _torch() if name == "torch" else _onnxruntime()


def _torch() -> RuntimeFacts:
    """Its version file says what it was built for: an import takes seconds. Where it is loaded, it is asked."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return RuntimeFacts("torch")
    try:
        about = runpy.run_path(str(Path(spec.origin).parent / "version.py"))
    except Exception as raised:
        return RuntimeFacts("torch", _version_of("torch"), "?", f"its version file cannot be read: {raised}")
    error = ""
    loaded: Any = sys.modules.get("torch")
    if loaded is not None and about.get("cuda"):
        try:
            loaded.cuda.init()
        except Exception as raised:
            error = str(raised).partition("\n")[0]
    return RuntimeFacts("torch", str(about.get("__version__", "")), str(about.get("cuda") or ""), error)


def _onnxruntime() -> RuntimeFacts:
    try:
        import onnxruntime
    except Exception:
        return RuntimeFacts("onnxruntime")
    return RuntimeFacts("onnxruntime", onnxruntime.__version__, providers=tuple(onnxruntime.get_available_providers()))


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "?"
