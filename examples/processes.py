"""The demo's workers and gateways: each a process with its own log; all of them end with the demo.

They use free ports and report them in their "ready" line. At the end each gets SIGTERM and must exit with 0. Linux
also ends them when the demo itself is killed. Must never signal a process that it did not start.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Self

START_SECONDS = 60.0
STOP_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoFailed(Exception):
    """The message says what to do about it."""


class Server:
    """One worker or gateway process."""

    def __init__(self, name: str, arguments: list[str], log: Path) -> None:
        self.name = name
        self.ports: dict[str, int] = {}
        self.killed = False
        self._log = log
        with log.open("w") as output:
            # In its own process group: Ctrl-C reaches the demo alone, which then stops the others.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "isochrone", *arguments, "--log-json"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=partial(end_with, os.getpid()),
            )

    @property
    def address(self) -> str:
        """The address that accepts requests."""
        return f"127.0.0.1:{self.ports.get('gateway') or self.ports['http']}"

    def wait_until_ready(self, workers: int = 0) -> Server:
        """Wait until every model is loaded and warm; for a gateway, until it has found ``workers`` workers."""
        give_up = time.monotonic() + START_SECONDS
        while time.monotonic() < give_up:
            ended = self.process.poll()
            lines = self._lines()
            found = sum('"a worker is ready"' in line for line in lines)
            for line in lines:
                if '"event": "ready"' in line and found >= workers:
                    told = json.loads(line)
                    self.ports = {key: told[key] for key in ("gateway", "http", "grpc", "metrics") if key in told}
                    return self
            if ended is not None:
                raise DemoFailed(f"the {self.name} ended with code {ended} before it was ready; {self.last_words()}")
            time.sleep(0.02)
        raise DemoFailed(f"the {self.name} was not ready after {START_SECONDS:.0f} s; {self.last_words()}")

    def kill(self) -> None:
        """End it as a crash would."""
        self.killed = True
        self.process.kill()

    def _lines(self) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()

    def last_words(self) -> str:
        return "its last lines:\n  " + "\n  ".join(self._lines()[-5:])


class Servers:
    """All processes of the demo; leaving the block ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: list[Server] = []
        self._started = 0

    def worker(self, name: str, *repositories: Path) -> Server:
        arguments = ["serve", "--host", "127.0.0.1", "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
        for repository in repositories:
            arguments += ["--model-repository", str(repository)]
        return self._start(name, arguments)

    def gateway(self, policy: str, workers: list[Server]) -> Server:
        arguments = ["gateway", "--listen", "127.0.0.1:0", "--metrics-port", "0", "--policy", policy, "--seed", "1"]
        for worker in workers:
            arguments += ["--upstream", worker.address]
        return self._start("gateway", arguments).wait_until_ready(len(workers))

    def _start(self, name: str, arguments: list[str]) -> Server:
        self._started += 1
        # A signal between the two lines would leave the process behind.
        with signals_held():
            server = Server(name, arguments, self._folder / f"{self._started}.log")
            self._servers.append(server)
        return server

    def end(self, servers: list[Server]) -> None:
        """End some of them at the same time; those that were not killed must exit with 0."""
        for server in servers:
            if server.process.poll() is None:
                server.process.terminate()
        give_up = time.monotonic() + STOP_SECONDS
        problems = []
        for server in servers:
            try:
                code = server.process.wait(max(0.0, give_up - time.monotonic()))
                # A server that was still starting may exit with another code.
                if code != 0 and not server.killed and (server.ports or code != -signal.SIGTERM):
                    problems.append(f"the {server.name} ended with code {code}, expected 0; {server.last_words()}")
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()
                problems.append(f"the {server.name} did not stop within {STOP_SECONDS:.0f} s and was killed")
        self._servers = [server for server in self._servers if server not in servers]
        if problems:
            raise DemoFailed("\n".join(problems))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A second Ctrl-C must not interrupt this: it would leave processes behind.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        try:
            self.end(self._servers)
        except DemoFailed:
            # The first error is the one to report.
            if kind is None or issubclass(kind, KeyboardInterrupt):
                raise


@contextmanager
def signals_held() -> Iterator[None]:
    """Delay signals until the end of the block."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def end_with(parent: int) -> None:
    """In the new process, before it becomes the server: get SIGTERM when the demo ends for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
