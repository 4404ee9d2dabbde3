"""What torch says of an error, in one line for callers."""

from __future__ import annotations

# gRPC sends errors in a trailer, and clients reject headers beyond 8 KiB.
_LONGEST = 2000


def error_text(error: BaseException) -> str:
    text = str(error).strip()
    # TorchScript puts a listing of the program before the message, which is the last line.
    return (text.rpartition("\n")[2] if "TorchScript interpreter" in text else text)[:_LONGEST]
