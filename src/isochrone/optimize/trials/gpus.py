"""Whether a search may use the machine's GPU, and what is said where it does not."""

from __future__ import annotations

from isochrone.devices.explanation import DriverFacts, RuntimeFacts, explain
from isochrone.devices.gpu_facts import read_driver, read_runtime
from isochrone.errors import ConfigError

RUNTIME = "onnxruntime"


def check_gpu(where: str, driver: DriverFacts | None = None, runtime: RuntimeFacts | None = None) -> None:
    """Raises if onnxruntime cannot use GPU 0. ``where``: the flag or the file that asks for it."""
    reason = explain(driver or read_driver(), runtime or read_runtime(RUNTIME), 0)
    if reason:
        raise ConfigError(where, "gpu", f"a GPU that {RUNTIME} can use, but {reason}", "a machine without it")


def unused_gpu(driver: DriverFacts | None = None, runtime: RuntimeFacts | None = None) -> str:
    """Why a search on the CPU leaves the machine's GPU out, in one line; "": it has none."""
    driver = driver or read_driver()
    if not (driver.device_count or driver.machine_count):
        return ""
    reason = explain(driver, runtime or read_runtime(RUNTIME), 0)
    return reason or "all trials are on the CPU; --device gpu with --new-model or --output tries the GPU"
