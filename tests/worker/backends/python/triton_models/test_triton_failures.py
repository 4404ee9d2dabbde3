"""Errors of Triton's python models: their codes both ways, and their texts."""

from __future__ import annotations

import asyncio
import concurrent.futures

import pytest

from isochrone.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    IsochroneError,
    ModelFailed,
    NotFound,
    Unavailable,
    Unsupported,
)
from isochrone.worker.backends.python.triton.failures import TritonError, described, server_error, triton_error

#: Code → (error, HTTP status, gRPC status), as Triton's frontends map them.
STATUSES = {
    TritonError.UNKNOWN: (ModelFailed, 400, 2),
    TritonError.INTERNAL: (ModelFailed, 500, 13),
    TritonError.NOT_FOUND: (NotFound, 404, 5),
    TritonError.INVALID_ARG: (InvalidArgument, 400, 3),
    TritonError.UNAVAILABLE: (Unavailable, 503, 14),
    TritonError.UNSUPPORTED: (Unsupported, 501, 12),
    TritonError.ALREADY_EXISTS: (AlreadyExists, 400, 6),
}


@pytest.mark.parametrize("code", STATUSES)
def test_codes_both_ways(code: int) -> None:
    kind, http, grpc = STATUSES[code]
    error = server_error(TritonError("words", code))
    assert isinstance(error, kind)
    assert (str(error), error.http_status, error.grpc_status) == ("words", http, grpc)
    assert triton_error(error).code() == code
    assert triton_error(error).message() == "words"


def test_a_cancelled_one() -> None:
    assert isinstance(server_error(TritonError("words", TritonError.CANCELLED)), Cancelled)


@pytest.mark.parametrize("error", [Internal("x"), ModelFailed("x")])
def test_other_errors_of_the_server_are_internal(error: IsochroneError) -> None:
    assert triton_error(error).code() == TritonError.INTERNAL


def test_a_deadline_that_passed_has_a_code_that_can_be_retried_or_not() -> None:
    assert triton_error(DeadlineExceeded("late")).code() in range(8)


def test_arguments() -> None:
    assert TritonError("default").code() == TritonError.INTERNAL
    with pytest.raises(TypeError, match="expected a str as message, given a int"):
        TritonError(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected one of its codes, such as TritonError.INTERNAL, given 9"):
        TritonError("x", 9)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_text_has_the_frames_from_the_innermost_outwards() -> None:
    text = described(raised(ValueError("no good")))
    first, at, frame, end = text.replace("\n\n", "\n").split("\n")
    assert (first, at, end) == ("ValueError: no good", "At:", "")
    assert frame.startswith(f"  {__file__}(")
    assert frame.endswith("): raised")


def test_a_text_without_a_message_or_frames() -> None:
    assert described(ValueError()) == "ValueError: <EMPTY MESSAGE>"
    assert described(raised(ValueError())).startswith("ValueError: <EMPTY MESSAGE>\n\nAt:\n")


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def test_a_message_that_cannot_be_read() -> None:
    assert described(Unreadable()) == "Unreadable: (its message cannot be read)"


def test_frames_of_what_waits_for_a_coroutine_are_left_out() -> None:
    async def fails() -> None:
        raise ValueError("inside")

    def waits() -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, fails()).result()

    with pytest.raises(ValueError, match="inside") as caught:
        waits()
    text = described(caught.value)
    assert ": fails\n" in text
    assert "futures" not in text
    assert "asyncio" not in text
