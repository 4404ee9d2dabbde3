"""Run the screen: keys, signals and samples in, frames out. All decisions are in ``view``."""

from __future__ import annotations

import os
import select
import signal
import sys
import time

import typer

from isochrone.cli.api_client import ApiFailed
from isochrone.cli.top.plain import plain_lines
from isochrone.cli.top.samples import Sample
from isochrone.cli.top.screen.drawing import draw
from isochrone.cli.top.screen.fetching import Fetching
from isochrone.cli.top.screen.keys import KeyReader
from isochrone.cli.top.screen.signals import Signals
from isochrone.cli.top.screen.terminal import Terminal
from isochrone.cli.top.screen.trends import glyphs_for
from isochrone.cli.top.screen.view import View, end, press, resize, take_failure, take_sample
from isochrone.cli.top.sources import Source

#: Seconds between two frames at most: durations on the screen advance.
_FRAME = 1.0
#: Seconds after which an escape is no beginning of a sequence; ssh may divide one.
_ESCAPE = 0.1


def run_screen(source: Source, interval: float, count: int) -> int:
    """Until the user quits, or for ``count`` updates; the exit status. Raises ``ApiFailed`` if nothing ever answers."""
    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.flush()
    with (
        Signals() as signals,
        Fetching(source, interval) as fetching,
        Terminal(keys, sys.stdout.fileno(), encoding) as terminal,
    ):
        screen = _Screen(View(interval=interval), count, terminal, keys, signals, fetching)
        status = screen.run(encoding)
    if count and screen.last is not None and screen.updates >= count:
        # The alternate screen is gone; the last update stays in the terminal.
        for line in plain_lines(screen.last):
            typer.echo(line)
    return status


class _Screen:
    def __init__(
        self, view: View, count: int, terminal: Terminal, keys: int | None, signals: Signals, fetching: Fetching
    ) -> None:
        self._view, self._count, self._terminal = view, count, terminal
        self._keys, self._signals, self._fetching = keys, signals, fetching
        self._reader = KeyReader()
        #: The first sample has no rates and does not count.
        self.updates = -1
        self.last: Sample | None = None

    def run(self, encoding: str) -> int:
        glyphs = glyphs_for(encoding)
        while True:
            size = self._terminal.size()
            self._view = resize(self._view, *size)
            self._terminal.show(draw(self._view, time.time(), glyphs), size)
            readable = self._wait()
            if self._keys in readable:
                self._read_keys()
            elif self._reader.is_waiting and not readable:
                self._press(self._reader.give_up())
            if self._fetching.descriptor in readable:
                self._take()
            if self._signals.descriptor in readable and (status := self._handle_signals()):
                return status
            if self._view.is_over:
                return 0

    def _wait(self) -> list[int]:
        descriptors = [self._signals.descriptor, self._fetching.descriptor]
        descriptors += [] if self._keys is None else [self._keys]
        return select.select(descriptors, [], [], _ESCAPE if self._reader.is_waiting else _FRAME)[0]

    def _read_keys(self) -> None:
        assert self._keys is not None
        received = os.read(self._keys, 1024)
        if received:
            self._press(self._reader.feed(received))
        else:
            # The terminal is gone.
            self._view = end(self._view)

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            self._view = press(self._view, key)

    def _take(self) -> None:
        for event in self._fetching.taken():
            if isinstance(event, Sample):
                self.updates += 1
                self.last = event
                self._view = take_sample(self._view, event)
                if self.updates == self._count > 0:
                    self._view = end(self._view)
                    return
            elif isinstance(event, ApiFailed) and self.last is not None:
                self._view = take_failure(self._view, str(event), time.time())
            else:
                raise event

    def _handle_signals(self) -> int:
        """The exit status, 0: go on."""
        for number in self._signals.taken():
            if self._signals.is_stop(number):
                return 128 + number
            if number == signal.SIGTSTP:
                self._terminal.leave()
                os.kill(os.getpid(), signal.SIGSTOP)
                self._terminal.enter()
            elif number == signal.SIGCONT:
                self._terminal.enter()
        return 0
