"""Errors that torch logs before another one is raised."""

from __future__ import annotations

import logging
import threading

import pytest

from isochrone.errors import ConfigError, Unavailable
from isochrone.worker.backends.torch.logged_errors import logged_errors_raised


def _log(text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        logging.getLogger("torch.export").warning("the file cannot be read", exc_info=True)


def _fail(logged: str, error: Exception) -> None:
    """A load that logs an error and raises another."""
    with logged_errors_raised():
        _log(logged)
        raise error


def _fail_beside_another_thread(logged: str, error: Exception) -> None:
    """A load that raises an error while another thread logs one."""
    with logged_errors_raised():
        other = threading.Thread(target=_log, args=(logged,))
        other.start()
        other.join()
        raise error


def test_an_error_says_what_was_logged_before() -> None:
    error = OSError("another")
    with pytest.raises(RuntimeError, match=r"^no such record; another$") as caught:
        _fail("no such record", error)
    assert caught.value.__cause__ is error


def test_an_error_that_refers_to_the_log_is_replaced_by_it() -> None:
    with pytest.raises(RuntimeError, match=r"^no such record$"):
        _fail("no such record", RuntimeError("it failed: check the warnings above"))


@pytest.mark.parametrize(
    "error",
    [Unavailable("does not fit"), ConfigError("model.pt2", "key", "this", "that"), MemoryError("no room")],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_callers_tell_apart_keep_their_class(error: Exception) -> None:
    text = str(error)
    with pytest.raises(type(error)) as caught:
        _fail("no such record", error)
    assert caught.value is error
    assert str(error) == text
    assert error.__notes__ == ["no such record"]


@pytest.mark.parametrize(
    "error", [OSError("another"), Unavailable("does not fit")], ids=lambda each: type(each).__name__
)
def test_an_error_stays_as_it_is_if_its_load_has_logged_nothing(error: Exception) -> None:
    with pytest.raises(RuntimeError, match="of an earlier load"):
        _fail("of an earlier load", OSError("another"))
    with pytest.raises(type(error)) as caught:
        _fail_beside_another_thread("of another thread", error)
    assert caught.value is error
    assert not hasattr(error, "__notes__")
