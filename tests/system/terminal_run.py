"""A command in a pseudo-terminal: keys in, the text of its screen out, the terminal's modes before and after.

Understands the few sequences that ``isochrone top`` writes: places, clearing, styles and modes. All else is text.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from typing import Any

_LIMIT = 60.0
_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")
#: Makes the pseudo-terminal the controlling one, so that Ctrl-C and Ctrl-Z are signals.
_CHILD = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"


class TerminalRun:
    """One running command."""

    def __init__(self, terminal: int, process: subprocess.Popen[bytes], width: int, height: int) -> None:
        self._terminal, self.process = terminal, process
        self._width, self._height = width, height
        self._text = ""
        self._cells: dict[int, str] = {}
        self._row = 0
        #: All that was written, and whether the alternate screen is shown and the cursor hidden.
        self.written = ""
        self.modes: dict[str, bool] = {}

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def resize(self, width: int, height: int) -> None:
        self._width, self._height = width, height
        set_size(self._terminal, width, height)

    def lines(self) -> list[str]:
        """The screen as it is now."""
        self._read(0.0)
        return [self._cells.get(row, "") for row in range(self._height)]

    def wait_for(self, *patterns: str) -> str:
        """The text of the screen, once it matches all the patterns."""
        ends = time.monotonic() + _LIMIT
        while True:
            screen = "\n".join(self.lines())
            if all(re.search(pattern, screen) for pattern in patterns):
                return screen
            assert time.monotonic() < ends, f"{patterns} did not come:\n{screen}\n{self.written[-2000:]!r}"
            self._read(0.1)

    def wait_without(self, pattern: str) -> str:
        ends = time.monotonic() + _LIMIT
        while re.search(pattern, screen := "\n".join(self.lines())):
            assert time.monotonic() < ends, f"{pattern} did not go:\n{screen}"
            self._read(0.1)
        return screen

    def end(self) -> int:
        """Wait until the command ends; its exit status, as a shell has it."""
        ends = time.monotonic() + _LIMIT
        while self.process.poll() is None:
            assert time.monotonic() < ends, f"it did not end:\n{self.written[-2000:]!r}"
            self._read(0.05)
        self._read(0.0)
        status = self.process.returncode
        return status if status >= 0 else 128 - status

    def terminal_modes(self) -> list[Any]:
        return termios.tcgetattr(self._terminal)

    def _read(self, seconds: float) -> None:
        while select.select([self._terminal], [], [], seconds)[0]:
            try:
                received = os.read(self._terminal, 65536)
            except OSError:
                return
            if not received:
                return
            text = received.decode("utf-8", "replace")
            self.written += text
            self._text += text
            self._apply()
            seconds = 0.0

    def _apply(self) -> None:
        while self._text:
            if found := _SEQUENCE.match(self._text):
                self._control(found[1], found[2])
                self._text = self._text[found.end() :]
            elif self._text[0] == "\x1b" and len(self._text) < 20:
                return  # the rest of it has not come yet
            else:
                text = re.match(r"[^\x1b]+|.", self._text, re.DOTALL)
                assert text is not None
                self._cells[self._row] = self._cells.get(self._row, "") + text[0]
                self._text = self._text[text.end() :]

    def _control(self, parameters: str, end: str) -> None:
        if end == "H":
            # Every line is written as a whole, from its first column.
            row, column = parameters.split(";")
            assert column == "1"
            self._row = int(row) - 1
            self._cells[self._row] = ""
        elif end == "J":
            self._cells.clear()
        elif end in "hl" and parameters.startswith("?"):
            self.modes[parameters] = end == "h"
            if parameters == "?1049":
                self._cells.clear()
        else:
            assert end == "m", f"an unexpected sequence: {parameters}{end}"


def set_size(terminal: int, width: int, height: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


@contextlib.contextmanager
def terminal_run(
    *words: str, width: int = 80, height: int = 24, environment: Mapping[str, str] | None = None
) -> Iterator[TerminalRun]:
    """``isochrone words…`` in a terminal of that size; killed at the end if it still runs."""
    terminal, inside = os.openpty()
    try:
        set_size(terminal, width, height)
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, sys.executable, "-m", "isochrone", *words],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(environment or {})},
        )
        try:
            yield TerminalRun(terminal, process, width, height)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(_LIMIT)
    finally:
        os.close(inside)
        os.close(terminal)
