"""The terminal: its modes while the screen is shown, and frames that write only the lines that changed.

``leave`` restores what ``enter`` found, on every way out.
"""

from __future__ import annotations

import contextlib
import io
import os
import termios
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.text import Text

#: Alternate screen, no cursor, no wrapping at the right edge; and back.
_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = b"\x1b[?7h\x1b[?25h\x1b[0m\x1b[?1049l"
#: A terminal that knows these shows all changes between them at once; others ignore them.
_BEGIN, _END = b"\x1b[?2026h", b"\x1b[?2026l"
_CLEAR = b"\x1b[2J"
_USUAL_SIZE = (80, 24)
_LOCAL_MODES, _CHARACTERS = 3, 6


class Terminal:
    """``keys``: the descriptor of keys, None without; ``screen``: the descriptor to write to."""

    def __init__(self, keys: int | None, screen: int, encoding: str) -> None:
        self._keys, self._screen, self._encoding = keys, screen, encoding
        self._found: list[Any] | None = None
        self._is_entered = False
        self._shown: list[str] = []
        self._size = _USUAL_SIZE
        here = Console()
        # Writes to memory in the colors of the real terminal.
        self._console = Console(
            file=io.StringIO(), force_terminal=True, color_system=_color_system(here), no_color=here.no_color
        )

    def __enter__(self) -> Terminal:
        try:
            self.enter()
        except BaseException:
            self.leave()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.leave()

    def enter(self) -> None:
        """Also after the process was stopped: another program may have changed the modes."""
        if self._keys is not None:
            if self._found is None:
                self._found = termios.tcgetattr(self._keys)
            modes = list(self._found)
            modes[_LOCAL_MODES] &= ~(termios.ECHO | termios.ICANON)
            modes[_CHARACTERS] = list(modes[_CHARACTERS])
            modes[_CHARACTERS][termios.VMIN], modes[_CHARACTERS][termios.VTIME] = 1, 0
            # Not after the output is sent: a slow connection would delay keys.
            termios.tcsetattr(self._keys, termios.TCSANOW, modes)
        self._is_entered = True
        self._write(_ENTER)
        self._shown = []

    def leave(self) -> None:
        # The modes first: a terminal that takes no output, such as after Ctrl-S, would block what is written.
        if self._keys is not None and self._found is not None:
            found, self._found = self._found, None
            with contextlib.suppress(OSError, termios.error):
                # Keys that were not read are not for the shell.
                termios.tcflush(self._keys, termios.TCIFLUSH)
                termios.tcsetattr(self._keys, termios.TCSANOW, found)
        if self._is_entered:
            self._is_entered = False
            # A terminal that is gone needs nothing.
            with contextlib.suppress(OSError):
                self._write(_LEAVE)

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self._screen)
        except OSError:
            return _USUAL_SIZE
        return (columns, lines) if columns > 0 and lines > 0 else _USUAL_SIZE

    def show(self, lines: Sequence[Text], size: tuple[int, int]) -> None:
        """Lines for the whole screen of that size."""
        self._console.size = size
        rendered = [self._rendered(line) for line in lines]
        changes = [b""]
        if size != self._size or not self._shown:
            self._size, self._shown = size, []
            changes.append(_CLEAR)
        for row, line in enumerate(rendered):
            if row >= len(self._shown) or self._shown[row] != line:
                changes.append(f"\x1b[{row + 1};1H{line}".encode(self._encoding, "replace"))
        self._shown = rendered
        if len(changes) > 1:
            self._write(_BEGIN + b"".join(changes) + _END)

    def _rendered(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", no_wrap=True, overflow="crop", highlight=False)
        return captured.get().rstrip("\n")

    def _write(self, content: bytes) -> None:
        while content:
            content = content[os.write(self._screen, content) :]


def _color_system(console: Console) -> Any:
    """As the argument of a console; "standard" at least: the selection is a style."""
    return console.color_system or "standard"
