"""Inputs that break a promise: told apart by where they break it, made small, and kept in the corpus."""

from __future__ import annotations

import hashlib
import traceback
from pathlib import Path

from fuzz.target import Target

#: Attempts to make one input smaller.
_ATTEMPTS = 3000
#: The beginning of a name in the corpus.
PREFIX = "found-"


def cause(error: BaseException) -> str:
    """The same for inputs that break the same promise in the same place: the type of the error and its line."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        frame for frame in frames if "/isochrone/" in frame.filename or "/fuzz/targets/" in frame.filename
    ] or frames
    last = ours[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}"


def failure(target: Target, data: bytes) -> str | None:
    """The cause, or None if the promise holds for this input."""
    try:
        target.check(data)
    except Exception as error:
        return cause(error)
    return None


def minimised(target: Target, data: bytes) -> bytes:
    """A smaller input with the same cause: pieces are taken out, larger ones first."""
    wanted = failure(target, data)
    if wanted is None:
        return data
    size, left = max(len(data) // 2, 1), _ATTEMPTS
    while left > 0:
        start, before = 0, len(data)
        while start < len(data) and left > 0:
            smaller = data[:start] + data[start + size :]
            left -= 1
            if failure(target, smaller) == wanted:
                data = smaller
            else:
                start += size
        if size == 1 and len(data) == before:
            break
        size = max(size // 2, 1)
    return data


def keep(target: Target, data: bytes, prefix: str = PREFIX) -> Path:
    """Write an input into the corpus, where ``make test`` tries it from now on."""
    target.corpus.mkdir(parents=True, exist_ok=True)
    path = target.corpus / f"{prefix}{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path
