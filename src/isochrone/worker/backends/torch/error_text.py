"""What torch says of an error, in one line for callers."""

from __future__ import annotations

# gRPC sends errors in a trailer, and clients reject headers beyond 8 KiB.
_LONGEST = 2000
#: Lines that torch and CUDA add for those who debug them.
_ADVICE = (
    "Set TORCHDYNAMO_VERBOSE",
    "You can suppress this exception",
    "import torch._dynamo",
    "torch._dynamo.config.suppress_errors",
    "CUDA kernel errors might be",
    "For debugging consider passing",
    "Compile with `TORCH_USE_CUDA_DSA`",
    "Device-side assertion tracking",
    "Search for `cuda",
)


def error_text(error: BaseException) -> str:
    text = str(error).strip()
    # TorchScript puts a listing of the program before the message, which is the last line.
    return (text.rpartition("\n")[2] if "TorchScript interpreter" in text else text)[:_LONGEST]


def error_line(error: BaseException) -> str:
    """The one line of an error that says what is wrong.

    It is the last one under a listing of frames, such as TorchScript's or that of a process that compiles; the first
    that has the word of a compiler; otherwise the first. torch.compile wraps errors: the innermost one counts.
    """
    error = _innermost(error)
    text = str(error)
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith(_ADVICE)]
    if not lines:
        return type(error).__name__
    if "Traceback" in text:
        return lines[-1][:_LONGEST]
    return next((line for line in lines if "error: " in line), lines[0])[:_LONGEST]


def compiler_error_line(error: BaseException) -> str:
    """The same with the kind of the error: the words of a compiler alone may be a mere name."""
    line, kind = error_line(error), type(_innermost(error)).__name__
    return line if line.startswith(kind) else f"{kind}: {line}"


def _innermost(error: BaseException) -> BaseException:
    while isinstance(inner := getattr(error, "inner_exception", None), BaseException):
        error = inner
    return error
