"""Which errors of torch mean that this process has lost its GPU for good.

After such an error (an illegal access, a failed assertion in a kernel, a hardware error) every CUDA call of the process
fails, and only a new process can use the GPU again. NVIDIA's documentation of ``cudaError_t`` says of which errors this
is true. Out of memory is none of them.

``device_error`` decides by the exception alone: ``torch.AcceleratorError`` has the error's number (torch 2.8 and
later), and all versions have CUDA's text in their messages. ``confirmed_device_error`` also calls CUDA, for libraries
that only say that they failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

#: Number of the error → its name and text in CUDA.
_ERRORS = {
    214: ("cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"),
    220: ("cudaErrorNvlinkUncorrectable", "uncorrectable NVLink error detected during the execution"),
    226: ("cudaErrorContained", "Invalid access of peer GPU memory over nvlink or a hardware error"),
    700: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    702: ("cudaErrorLaunchTimeout", "the launch timed out and was terminated"),
    709: ("cudaErrorContextIsDestroyed", "context is destroyed"),
    710: ("cudaErrorAssert", "device-side assert triggered"),
    714: ("cudaErrorHardwareStackError", "hardware stack error"),
    715: ("cudaErrorIllegalInstruction", "an illegal instruction was encountered"),
    716: ("cudaErrorMisalignedAddress", "misaligned address"),
    717: ("cudaErrorInvalidAddressSpace", "operation not supported on global/shared address space"),
    718: ("cudaErrorInvalidPc", "invalid program counter"),
    719: ("cudaErrorLaunchFailure", "unspecified launch failure"),
    721: ("cudaErrorTensorMemoryLeak", "tensor memory not completely deallocated"),
    810: ("cudaErrorMpsClientTerminated", "MPS client has been terminated by the server"),
    911: ("cudaErrorExternalDevice", "external device error"),
}
_TEXT_BY_NAME = dict(_ERRORS.values())
# torch and AOTInductor; their calls of the driver; kernels of the language Triton.
_REPORTED = re.compile(r"(?:CUDA (?:driver |runtime )?error|Triton Error \[CUDA\]): *([^\n]*)")
_NAME = re.compile(r"\bcudaError[A-Z]\w+")


def device_error(error: BaseException) -> str | None:
    """CUDA's words, as in "CUDA error: misaligned address", if the GPU is lost to this process; None: it is not."""
    for each in _with_causes(error):
        text = _text_of(each)
        if text is not None:
            return f"CUDA error: {text}"
    return None


def confirmed_device_error(torch: Any, error: BaseException) -> str | None:
    """The same, and for any other error, whether CUDA still works in this process.

    cuBLAS, cuDNN and compiled packages report a lost GPU by errors of their own. It waits for what runs on the GPU.
    """
    found = device_error(error)
    if found is not None or not torch.cuda.is_initialized():
        return found
    try:
        torch.cuda.synchronize()
    except Exception as later:
        return device_error(later)
    return None


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    left: BaseException | None = error
    while left is not None and id(left) not in seen:
        seen.add(id(left))
        yield left
        left = left.__cause__ or left.__context__


def _text_of(error: BaseException) -> str | None:
    said = str(error)
    reported: list[str] = _REPORTED.findall(said)
    # Other accelerators have numbers of their own.
    if reported and getattr(error, "error_code", None) in _ERRORS:
        return reported[0].strip()
    for message in reported:
        for _, text in _ERRORS.values():
            if message.startswith(text):
                return text
    for name in _NAME.findall(said):
        if name in _TEXT_BY_NAME:
            return _TEXT_BY_NAME[name]
    return None
