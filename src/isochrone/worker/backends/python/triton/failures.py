"""Exceptions of Triton's python models, and their texts as Triton's clients see them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import traceback
from pathlib import Path

from isochrone.errors import (
    AlreadyExists,
    Cancelled,
    InvalidArgument,
    IsochroneError,
    ModelFailed,
    NotFound,
    Unavailable,
    Unsupported,
)
from isochrone.secure.sandbox.explained import hint

#: Files of the worker, of Python's import system, and of what waits for a model's coroutine.
_NOT_THE_MODELS = (
    f"{Path(__file__).parents[4]}/",
    importlib.__file__,
    "<frozen importlib",
    *(f"{Path(function.__code__.co_filename).parent}/" for function in (asyncio.run, concurrent.futures.wait)),
)


class TritonModelException(Exception):
    """``pb_utils.TritonModelException``."""


class TritonError:
    """``pb_utils.TritonError``: the error of one response."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    __slots__ = ("_code", "_message")

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        if not isinstance(message, str):
            raise TypeError(f"TritonError: expected a str as message, given a {type(message).__name__}")
        if code not in range(8):
            raise TypeError(f"TritonError: expected one of its codes, such as TritonError.INTERNAL, given {code!r}")
        self._message = message
        self._code = code

    def code(self) -> int:
        return self._code

    def message(self) -> str:
        return self._message


class UnknownFailure(ModelFailed):
    """A model's error of the kind UNKNOWN. The statuses are Triton's."""

    http_status = 400
    grpc_status = 2


_ERRORS: dict[int, type[IsochroneError]] = {
    TritonError.UNKNOWN: UnknownFailure,
    TritonError.NOT_FOUND: NotFound,
    TritonError.INVALID_ARG: InvalidArgument,
    TritonError.UNAVAILABLE: Unavailable,
    TritonError.UNSUPPORTED: Unsupported,
    TritonError.ALREADY_EXISTS: AlreadyExists,
    TritonError.CANCELLED: Cancelled,
}


def server_error(error: TritonError) -> IsochroneError:
    """The error of a response, for its caller."""
    return _ERRORS.get(error.code(), ModelFailed)(error.message())


def triton_error(error: IsochroneError) -> TritonError:
    """An error of the server, for a model that called another one."""
    for code, kind in _ERRORS.items():
        if isinstance(error, kind):
            return TritonError(str(error), code)
    return TritonError(str(error), TritonError.INTERNAL)


def described(error: BaseException) -> str:
    """An exception of the model as Triton words it: type, message, and the frames from the innermost outwards."""
    try:
        message = str(error)
    except Exception:
        message = "(its message cannot be read)"
    text = f"{type(error).__name__}: {message or '<EMPTY MESSAGE>'}{hint(error)}"
    # Triton's own classes are written in C++ and have no frames; neither has the server that calls the model.
    frames = [
        f"  {frame.filename}({frame.lineno}): {frame.name}\n"
        for frame in reversed(traceback.extract_tb(error.__traceback__))
        if not frame.filename.startswith(_NOT_THE_MODELS)
    ]
    return f"{text}\n\nAt:\n{''.join(frames)}" if frames else text
