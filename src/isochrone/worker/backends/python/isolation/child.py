"""The server's hold on the process of one isolated model: start it, ask it, end it.

``python_isolated`` decides when; this does it. A child ends with ``end`` at the latest, and with the server whatever
happens to that. Nothing here may wait for a child without watching for its death.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from queue import SimpleQueue

from isochrone.worker.backends.python.isolation import messages
from isochrone.worker.backends.python.isolation.messages import Answer, Question
from isochrone.worker.backends.python.isolation.shared_block import SharedBlock

# Time for a model's own close(); a child that takes longer is killed.
_CLOSE_MILLISECONDS = 5000
_MESSAGE_SECONDS = 5


class ChildGone(Exception):
    """The child ended, or was ended here because it made no sense; the sentence says how."""


class ChildTimedOut(Exception):
    """The child did not answer in time and has been killed."""


class Spawner:
    """A thread that does nothing but start children.

    The kernel's "die with your parent" is tied to the *thread* that started the process, not to its process: started
    by a passing loader thread, a child would be killed as soon as that thread ends.
    """

    def __init__(self, name: str) -> None:
        self._orders: SimpleQueue[tuple[list[str], list[int]] | None] = SimpleQueue()
        self._results: SimpleQueue[subprocess.Popen[bytes] | OSError] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"spawner-{name}", daemon=True)
        self._thread.start()

    def start(self, command: list[str], descriptors: list[int]) -> subprocess.Popen[bytes]:
        self._orders.put((command, descriptors))
        result = self._results.get()
        if isinstance(result, OSError):
            raise result
        return result

    def close(self) -> None:
        """Ends the thread, and with it any child still alive."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            command, descriptors = order
            try:
                # A group of its own: Ctrl-C at a terminal is for the server alone, and what the model itself
                # starts can be ended together with it.
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors, process_group=0)
            except OSError as error:
                self._results.put(error)
            else:
                self._results.put(process)


class Child:
    """One process, from its start to its end."""

    def __init__(self, spawner: Spawner, request: SharedBlock, responses: list[SharedBlock]) -> None:
        self._link, other = socket.socketpair()
        descriptors = [other.fileno(), request.descriptor, *(block.descriptor for block in responses)]
        # -P: the directory the server was started in must not come before installed packages.
        # -u: what a model printed before it crashed is not lost in a buffer.
        command = [sys.executable, "-P", "-u", "-m", "isochrone.worker.backends.python.isolation.child_main"]
        command += [str(os.getpid()), *map(str, descriptors)]
        try:
            self._process = spawner.start(command, descriptors)
        except OSError:
            self._link.close()
            raise
        finally:
            other.close()
        # A child that stops in the middle of a message, or stops reading, is not waited for without end.
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._link.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", _MESSAGE_SECONDS, 0))
        # The socket's end alone does not tell a death: a process forked by the model may hold its other side.
        self._death = os.pidfd_open(self._process.pid)
        self._answer_or_death = _poll(self._link.fileno(), self._death)
        self._death_only = _poll(self._death)

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        """Whether the child waits for a question; one that speaks without being asked has closed its socket or is mad.

        Not Popen.poll, which reaps: until ``end`` has killed the child's group, nobody else may be given its id.
        """
        return not self._answer_or_death.poll(0)

    def ask(self, question: Question, timeout_ms: int | None) -> Answer:
        """The child's answer. When it gives none, it is dead by the time this raises."""
        try:
            messages.send(self._link, question)
            ready = [descriptor for descriptor, _ in self._answer_or_death.poll(timeout_ms)]
            if not ready:
                self.end()
                raise ChildTimedOut
            if self._link.fileno() not in ready:
                raise messages.Disconnected("it has ended")
            return messages.receive_answer(self._link)
        except messages.Disconnected as error:
            raise ChildGone(self._last_words(str(error))) from None

    def _last_words(self, otherwise: str) -> str:
        # The socket closes a moment before the process is gone.
        died = bool(self._death_only.poll(1000))
        code = self.end()
        if not died:
            return f"its process was killed: {otherwise}"
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process exited with code {code}"

    def close(self) -> None:
        """Lets the model close itself, then ends the child."""
        try:
            messages.send(self._link, messages.Close())
            self._death_only.poll(_CLOSE_MILLISECONDS)
        except messages.Disconnected:
            pass
        self.end()

    def end(self) -> int:
        """Kills the child and what it started, gives back what it held, and returns its exit code.

        May be called again.
        """
        if self._link.fileno() >= 0:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            self._link.close()
            os.close(self._death)
        return self._process.wait()


def _poll(*descriptors: int) -> select.poll:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return poll
