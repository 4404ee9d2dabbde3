"""The terminal of ``isochrone top``: its modes before and after, and what a frame writes."""

from __future__ import annotations

import contextlib
import os
import select
import termios
from collections.abc import Iterator

import pytest
from rich.text import Text

from isochrone.cli.top.screen.terminal import Terminal


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """The outer and the inner end of a pseudo-terminal."""
    outer, inner = os.openpty()
    yield outer, inner
    os.close(outer)
    os.close(inner)


def written(outer: int) -> str:
    text = b""
    while select.select([outer], [], [], 0)[0]:
        text += os.read(outer, 65536)
    return text.decode()


def test_an_error_leaves_the_terminal_as_it_was(ends: tuple[int, int]) -> None:
    outer, inner = ends
    before = termios.tcgetattr(inner)
    with contextlib.suppress(ZeroDivisionError), Terminal(inner, inner, "utf-8"):
        assert not termios.tcgetattr(inner)[3] & (termios.ECHO | termios.ICANON)
        assert termios.tcgetattr(inner)[3] & termios.ISIG
        os.write(outer, b"keys that nobody reads")
        raise ZeroDivisionError
    assert termios.tcgetattr(inner) == before
    assert written(outer).endswith("\x1b[?7h\x1b[?25h\x1b[0m\x1b[?1049l")
    # They are not for the shell.
    os.set_blocking(inner, False)
    with pytest.raises(BlockingIOError):
        os.read(inner, 100)


def test_what_entered_twice_is_left_once(ends: tuple[int, int]) -> None:
    outer, inner = ends
    before = termios.tcgetattr(inner)
    with Terminal(inner, inner, "utf-8") as terminal:
        terminal.enter()
        terminal.leave()
        assert termios.tcgetattr(inner) == before
        terminal.enter()
        assert termios.tcgetattr(inner) != before
    assert termios.tcgetattr(inner) == before
    assert written(outer).count("\x1b[?1049l") == 2


def test_a_frame_writes_only_the_lines_that_changed(ends: tuple[int, int]) -> None:
    outer, inner = ends
    with Terminal(inner, inner, "utf-8") as terminal:
        terminal.show([Text("first"), Text("second")], (20, 2))
        assert "\x1b[2J" in written(outer)
        terminal.show([Text("first"), Text("other")], (20, 2))
        change = written(outer)
        assert "other" in change
        assert "first" not in change
        assert "\x1b[2J" not in change
        terminal.show([Text("first"), Text("other")], (20, 2))
        assert written(outer) == ""
        terminal.show([Text("first"), Text("other")], (30, 2))
        assert "first" in written(outer)


def test_a_terminal_of_another_encoding_gets_what_it_can_show(ends: tuple[int, int]) -> None:
    outer, inner = ends
    with Terminal(inner, inner, "ascii") as terminal:
        terminal.show([Text("Größe")], (20, 1))
        assert "Gr??e" in written(outer)
