"""The child process of an isolated model, as the server sees it: start it, send questions, kill it.

A child ends when ``end`` is called, or when the server dies. Nothing here waits for a child without watching for its
death.
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

# Time for a model's close(); a child that takes longer is killed.
_CLOSE_MILLISECONDS = 5000
_MESSAGE_SECONDS = 5


class ChildGone(Exception):
    """The child exited, or was killed because its messages were invalid; the message says which."""


class ChildTimedOut(Exception):
    """The child did not answer in time and has been killed."""


class Spawner:
    """A thread that starts children.

    The kernel's parent-death signal depends on the *thread* that started the process: a child of a loader thread would
    be killed as soon as that thread ends.
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
        """Ends the thread, which kills any child that is still alive."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            command, descriptors = order
            try:
                # A process group of its own: Ctrl-C reaches the server alone, and the processes of the model can be
                # killed with it.
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
        # -P: the working directory must not come before installed packages.
        # -u: the output of a model that crashes is not lost in a buffer.
        command = [sys.executable, "-P", "-u", "-m", "isochrone.worker.backends.python.isolation.child_main"]
        command += [str(os.getpid()), *map(str, descriptors)]
        try:
            self._process = spawner.start(command, descriptors)
        except OSError:
            self._link.close()
            raise
        finally:
            other.close()
        # A child that stops in the middle of a message, or stops reading, must not block the server.
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._link.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", _MESSAGE_SECONDS, 0))
        # The end of the socket does not show a death: a process that the model forked may hold the other side.
        self._death = os.pidfd_open(self._process.pid)
        self._answer_or_death = _poll(self._link.fileno(), self._death)
        self._death_only = _poll(self._death)

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        """Whether the child waits for a question; a child that sends without a question is broken.

        Not Popen.poll, which reaps: the process id must stay reserved until ``end`` has killed the child's group.
        """
        return not self._answer_or_death.poll(0)

    def ask(self, question: Question, timeout_ms: int | None) -> Answer:
        """The child's answer. If there is none, the child is dead when this raises."""
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
            raise ChildGone(self._cause_of_death(str(error))) from None

    def _cause_of_death(self, reason: str) -> str:
        # The socket closes a moment before the process ends.
        died = bool(self._death_only.poll(1000))
        code = self.end()
        if not died:
            return f"its process was killed: {reason}"
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process exited with code {code}"

    def close(self) -> None:
        """Lets the model close, then ends the child."""
        try:
            messages.send(self._link, messages.Close())
            self._death_only.poll(_CLOSE_MILLISECONDS)
        except messages.Disconnected:
            pass
        self.end()

    def end(self) -> int:
        """Kills the child and its process group and returns its exit code. May be called again."""
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
