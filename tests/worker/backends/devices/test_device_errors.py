"""Which errors of torch mean that the process has lost its GPU: the texts of torch 2.6 to 2.13."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from isochrone.errors import ModelFailed
from isochrone.worker.backends.devices.errors import confirmed_device_error, device_error

ASYNCHRONOUS = """
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
SEARCH = (
    "\nSearch for `{}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information."
)
SCRIPTED = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript (most recent call last):
  File "<string>", line 3, in forward
    return x.index_select(0, y)
           ~~~~~~~~~~~~~~ <--- HERE
RuntimeError: CUDA error: device-side assert triggered"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA error: an illegal memory access was encountered" + ASYNCHRONOUS, "an illegal memory access was encoun"),
        ("CUDA error: device-side assert triggered" + ASYNCHRONOUS, "device-side assert triggered"),
        ("CUDA error: misaligned address" + ASYNCHRONOUS, "misaligned address"),
        ("CUDA error: unspecified launch failure" + ASYNCHRONOUS, "unspecified launch failure"),
        ("CUDA error: an illegal instruction was encountered", "an illegal instruction was encountered"),
        ("CUDA error: the launch timed out and was terminated", "the launch timed out and was terminated"),
        ("CUDA error: uncorrectable ECC error encountered", "uncorrectable ECC error encountered"),
        ("CUDA driver error: an illegal memory access was encountered", "an illegal memory access was encountered"),
        ("Triton Error [CUDA]: an illegal memory access was encountered", "an illegal memory access was encountered"),
        ("CUDA error: words of 2031" + SEARCH.format("cudaErrorTensorMemoryLeak"), "tensor memory not completely"),
        ("cudaErrorIllegalAddress: an illegal memory access was encountered", "an illegal memory access was encoun"),
        (SCRIPTED, "device-side assert triggered"),
    ],
)
def test_the_gpu_is_lost(message: str, expected: str) -> None:
    found = device_error(RuntimeError(message))
    assert found is not None
    assert found.startswith(f"CUDA error: {expected}")
    assert "\n" not in found


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.72 GiB",
        "CUDA error: out of memory" + SEARCH.format("cudaErrorMemoryAllocation"),
        "CUDA error: invalid argument" + SEARCH.format("cudaErrorInvalidValue"),
        "CUDA error: no kernel image is available for execution on the device",
        "CUDA error: operation not permitted when stream is capturing" + ASYNCHRONOUS,
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle )`",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "device-side assert triggered",
        "",
    ],
)
def test_the_gpu_is_not_lost_by_what_is_said(message: str) -> None:
    assert device_error(RuntimeError(message)) is None


class AcceleratorError(RuntimeError):
    """As torch raises it since 2.8."""

    def __init__(self, message: str, error_code: int) -> None:
        super().__init__(message)
        self.error_code = error_code


def test_the_number_of_an_error_decides_if_it_has_one() -> None:
    assert device_error(AcceleratorError("CUDA error: words of 2031\nmore", 721)) == "CUDA error: words of 2031"
    assert device_error(AcceleratorError("CUDA error: out of memory", 2)) is None
    # Other accelerators have numbers of their own.
    assert device_error(AcceleratorError("MPS: invalid buffer", 700)) is None


def test_causes_are_looked_at() -> None:
    cause = RuntimeError("CUDA error: misaligned address")
    failure = ModelFailed("model 'm' version 1: torch: it failed")
    failure.__cause__ = cause
    assert device_error(failure) == "CUDA error: misaligned address"
    cause.__cause__ = failure  # a circle
    failure.__cause__ = ValueError("bad")
    assert device_error(failure) is None


class Cuda:
    """Stands in for ``torch.cuda``."""

    def __init__(self, initialized: bool, error: str = "") -> None:
        self._initialized = initialized
        self._error = error
        self.waits = 0

    def is_initialized(self) -> bool:
        return self._initialized

    def synchronize(self) -> None:
        self.waits += 1
        if self._error:
            raise RuntimeError(self._error)


@pytest.mark.parametrize(
    ("cuda", "said", "expected", "waits"),
    [
        (Cuda(True, "CUDA error: misaligned address"), "cuDNN error", "CUDA error: misaligned address", 1),
        (Cuda(True, "CUDA error: out of memory"), "cuDNN error", None, 1),
        (Cuda(True), "cuDNN error", None, 1),
        (Cuda(False, "never called"), "a wrong shape", None, 0),
        (Cuda(True), "CUDA error: misaligned address", "CUDA error: misaligned address", 0),
    ],
)
def test_cuda_is_asked_where_the_error_does_not_say_it(cuda: Cuda, said: str, expected: str | None, waits: int) -> None:
    assert confirmed_device_error(SimpleNamespace(cuda=cuda), RuntimeError(said)) == expected
    assert cuda.waits == waits
