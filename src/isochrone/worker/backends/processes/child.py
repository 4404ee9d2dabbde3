"""One child process, as the server sees it: start it, watch for its death, kill it.

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
import threading
from collections.abc import Sequence
from queue import SimpleQueue

from isochrone.secure.sandbox.confinement import Confinement
from isochrone.secure.sandbox.launch import Launch, launch_of
from isochrone.worker.backends.processes.output import Output
from isochrone.worker.backends.processes.shared_block import SharedBlock

# Limit of the time for a message that the child does not read, or does not finish.
_MESSAGE_SECONDS = 5
# A link closes a moment before the process ends: time for that end, before the child is killed.
_END_MILLISECONDS = 1000


class Spawner:
    """A thread that starts children.

    The kernel's parent-death signal depends on the *thread* that started the process: a child of a loader thread would
    be killed as soon as that thread ends.
    """

    def __init__(self, name: str, confinement: Confinement | None = None) -> None:
        """``confinement``: of its children."""
        self.confinement = confinement
        self._orders: SimpleQueue[tuple[Launch, int | None] | None] = SimpleQueue()
        self._results: SimpleQueue[subprocess.Popen[bytes] | OSError] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"spawner-{name}", daemon=True)
        self._thread.start()

    def start(self, launch: Launch, output: int | None = None) -> subprocess.Popen[bytes]:
        """``output``: the descriptor for what it prints; None: that of this process."""
        self._orders.put((launch, output))
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
            launch, output = order
            try:
                # A process group of its own: Ctrl-C reaches the server alone, and the processes of the model can be
                # killed with it.
                process = subprocess.Popen(
                    launch.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=launch.environment,
                    pass_fds=launch.descriptors,
                    process_group=0,
                )
            except OSError as error:
                self._results.put(error)
            else:
                self._results.put(process)


class ChildProcess:
    """One process, from its start to its end.

    Its arguments are the server's process id and the descriptors of its links and blocks.
    """

    def __init__(self, spawner: Spawner, module: str, links: int, blocks: Sequence[SharedBlock]) -> None:
        """``module``: its program; ``links``: the number of its socket pairs."""
        pairs = [socket.socketpair() for _ in range(links)]
        #: The server's ends of its links.
        self.links = [ours for ours, _ in pairs]
        descriptors = [theirs.fileno() for _, theirs in pairs] + [block.descriptor for block in blocks]
        arguments = [str(os.getpid()), *map(str, descriptors)]
        # The files and the terminal of the worker are not for a confined process.
        self._output = Output() if spawner.confinement is not None else None
        try:
            with launch_of(module, arguments, descriptors, spawner.confinement) as launch:
                self._process = spawner.start(launch, None if self._output is None else self._output.writer)
        except OSError:
            self._close_links()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
            if self._output is not None:
                self._output.begin()
        for link in self.links:
            # A child that stops in the middle of a message, or stops reading, must not block the server.
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                link.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", _MESSAGE_SECONDS, 0))
        #: Readable when the process has ended. The end of a link does not show it: a process that the model forked may
        #: hold the other side.
        self.death = os.pidfd_open(self._process.pid)
        self._lock = threading.Lock()
        self._code: int | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_died(self, timeout_ms: int = 0) -> bool:
        """Waits for the end of the process; whether it has ended.

        Not Popen.poll, which reaps: the process id must stay reserved until ``end`` has killed the child's group.
        """
        return bool(polled(self.death).poll(timeout_ms))

    def cause_of_death(self, reason: str) -> str:
        """Ends the child, if it has not ended; ``reason`` is why it was not left alive."""
        died = self.has_died(_END_MILLISECONDS)
        code = self.end()
        if not died:
            return f"its process was killed: {reason}"
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process exited with code {code}"

    def end(self) -> int:
        """Kills the child and its process group and returns its exit code. From any thread, and again."""
        with self._lock:
            if self._code is None:
                try:
                    os.killpg(self._process.pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass
                self._code = self._process.wait()
                if self._output is not None:
                    self._output.end()
            return self._code

    def release(self) -> None:
        """Closes the links and ``death``, which no thread may use any more. May be called again."""
        if self.death >= 0:
            os.close(self.death)
            self.death = -1
            self._close_links()

    def _close_links(self) -> None:
        for link in self.links:
            link.close()


def polled(*descriptors: int) -> select.poll:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return poll
