"""The first link of a process, as the event loop's thread uses it: questions that need no thread of the worker.

A question goes from the loop to the process, and its answer comes back to the loop: two context switches, where a
thread in between would cost four. The loop watches the link from the first such question until the instance's thread
needs it. Nothing here waits.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from isochrone.worker.backends.processes.frames import Frame, FrameReader, LinkBroken

if TYPE_CHECKING:
    from isochrone.worker.backends.processes.places import Bytes


class Asker(Protocol):
    """What is called on the loop's thread while a question is open."""

    def answer_came(self, body: memoryview | Bytes, payload: Bytes) -> None: ...

    def link_broke(self, reason: str) -> None: ...

    def tick(self) -> None:
        """Called at intervals."""


class LoopLink:
    """One question at a time. On the loop's thread, except where it says so."""

    def __init__(self, link: socket.socket, answers: FrameReader, asker: Asker, tick_ms: int) -> None:
        self._link = link
        self._answers = answers
        self._asker = asker
        self._tick_seconds = tick_ms / 1000
        self._loop: asyncio.AbstractEventLoop | None = None
        #: What the loop watches. A descriptor of its own: the session may close the link on another thread.
        self._watched = link.dup()
        self._is_watching = False
        #: Whether this is where an answer is received; a thread that takes over changes it, under the lock.
        self._is_open = False
        self._using = threading.Lock()
        #: The rest of a question of which the link took only a part.
        self._rest = b""
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, question: Frame) -> None:
        """Sends a question. No other one may be open."""
        if not self._is_watching:
            self._watch()
        self._is_open = True
        if self._timer is None:
            self._set_timer()
        self._send(question[0] if len(question) == 1 else b"".join(question))

    def leave(self) -> None:
        """Stops watching: another thread uses the link, or the session ends."""
        self._is_open, self._rest = False, b""
        if self._is_watching and self._loop is not None:
            self._is_watching = False
            self._loop.remove_reader(self._watched.fileno())
            self._loop.remove_writer(self._watched.fileno())

    def end(self) -> None:
        """The process is dead: takes the answer that it may have sent before, and stops watching."""
        if self._is_open:
            self._readable()
        self.leave()

    def _watch(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._watched.fileno(), self._readable)
        self._is_watching = True

    def _send(self, data: bytes) -> None:
        try:
            sent = self._link.send(data, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._asker.link_broke(str(error))
            return
        if sent == len(data) and not self._rest:
            return
        had_rest, self._rest = bool(self._rest), data[sent:]
        # The process has read all earlier questions, so that this one finds an empty buffer: it is a rare case.
        if self._loop is not None:
            if self._rest and not had_rest:
                self._loop.add_writer(self._watched.fileno(), self._writable)
            elif had_rest and not self._rest:
                self._loop.remove_writer(self._watched.fileno())

    def _writable(self) -> None:
        with self._using:
            if self._is_open:
                self._send(self._rest)

    def _readable(self) -> None:
        broken = ""
        received = None
        with self._using:
            if not self._is_open:
                # The process has ended or sends what nobody asked for; whoever uses the link next finds out.
                self.leave()
                return
            try:
                received = self._answers.receive(socket.MSG_DONTWAIT)
            except LinkBroken as error:
                broken = str(error)
            if received is not None:
                self._is_open = False
        if received is not None:
            self._asker.answer_came(*received)
        elif broken:
            self.leave()
            self._asker.link_broke(broken)

    def _tick(self) -> None:
        self._timer = None
        if self._is_open:
            self._asker.tick()
            self._set_timer()

    def _set_timer(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(self._tick_seconds, self._tick)

    # On any thread.

    def call_asker(self, callback: Callable[[], None]) -> bool:
        """Calls ``callback`` on the loop's thread, if a question was ever asked there; whether it will be called."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed
            return False
        return self._loop is not None

    def take_over(self) -> bytes | None:
        """The calling thread uses the link from now on. If a question is open: the rest of it, to be sent, maybe
        empty; its answer comes to this thread."""
        with self._using:
            was_open, self._is_open = self._is_open, False
            rest, self._rest = self._rest, b""
        return rest if was_open else None

    def close(self) -> None:
        """Nobody uses the link any more. May be called again."""
        if not self.call_asker(self._close):
            self._watched.close()

    def _close(self) -> None:
        self.leave()
        self._watched.close()
