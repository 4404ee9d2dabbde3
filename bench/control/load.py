"""Client processes around a run: started with it, stopped at its end, their history read back.

Must never read a history before every client has ended by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.control.clients import LOST_SECONDS
from bench.control.history import Answer, read
from bench.worker.peers.process import REPOSITORY_ROOT


@dataclass(frozen=True)
class Stream:
    """One client process."""

    name: str
    rate: float = 0.0
    in_flight: int = 0
    transport: str = "http"
    models: tuple[str, ...] = ("solo", "chain")
    retry: bool = False
    seconds: float = 0.0
    #: Each request names one of so many; the streams share them.
    agents: int = 0

    def words(self) -> list[str]:
        words = ["--client", self.name, "--transport", self.transport, "--seconds", str(self.seconds)]
        words += ["--agents", str(self.agents)] if self.agents else []
        words += ["--in-flight", str(self.in_flight)] if self.in_flight else ["--rate", str(self.rate)]
        words += [word for model in self.models for word in ("--model", model)]
        return [*words, "--retry"] if self.retry else words


class Load:
    """``with Load(...) as load: ...``; then ``load.history()``."""

    def __init__(self, directory: Path, gateways: Sequence[str], streams: Sequence[Stream], seed: int = 1) -> None:
        self._directory = directory
        self._gateways = gateways
        self._streams = streams
        self._seed = seed
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Load:
        try:
            for number, stream in enumerate(self._streams):
                self._processes.append(self._start(stream, self._seed + number))
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._kill()
            return
        for process in self._processes:
            process.terminate()
        self.wait(LOST_SECONDS + 30)

    def wait(self, timeout_seconds: float) -> None:
        """Until all have ended well."""
        ends = time.monotonic() + timeout_seconds
        try:
            for process, stream in zip(self._processes, self._streams, strict=True):
                status = process.wait(max(0.1, ends - time.monotonic()))
                if status:
                    raise RuntimeError(f"client {stream.name} ended with {status}")
        finally:
            self._kill()

    def history(self) -> list[Answer]:
        return read(self._directory)

    def _start(self, stream: Stream, seed: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "bench.control.clients", "--history", str(self._directory), "--seed", str(seed)]
        words += [word for gateway in self._gateways for word in ("--gateway", gateway)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY_ROOT)}
        return subprocess.Popen([*words, *stream.words()], stdin=subprocess.DEVNULL, env=environment)

    def _kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
