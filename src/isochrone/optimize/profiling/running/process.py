"""The command's side of the process that runs the model: it starts it, asks it, and replaces one that has ended."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

import msgspec

from isochrone.clock import SECOND, now_ns
from isochrone.errors import ModelFailed
from isochrone.optimize.profiling.running.messages import (
    Failed,
    Measure,
    Measured,
    Open,
    Opened,
    Operator,
    Operators,
    ProfileOperators,
    Request,
    Response,
    decode_response,
    encode,
)

_CHILD = "isochrone.optimize.profiling.running.child"
#: Beyond the time of the runs: a load of many gigabytes takes minutes.
_PATIENCE_SECONDS = 300.0
_ENDS_SECONDS = 5.0
_CHUNK = 1 << 16
Answer = TypeVar("Answer", Opened, Measured, Operators)


class RunFailed(ModelFailed):
    """A configuration could not be measured. The model may run under another one."""


class ModelProcess:
    """``with ModelProcess(...) as process``. Each request raises ``RunFailed`` where the model fails or crashes."""

    def __init__(self, repository: Path, model: str, version: int, shapes: Mapping[str, Sequence[int]]) -> None:
        sizes = {name: list(each) for name, each in shapes.items()}
        self._open = Open(str(repository.absolute()), model, version, sizes)
        self._label = f"model '{model}' version {version}"
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        #: The process is killed, so it cannot remove its temporary files itself.
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def measure(self, batch: int, threads: int, instances: int, *, least_seconds: float, seconds: float) -> Measured:
        return self._ask(Measure(batch, threads, instances, least_seconds, seconds), Measured, seconds)

    def operators(self, batch: int, threads: int, *, seconds: float) -> list[Operator]:
        return self._ask(ProfileOperators(batch, threads, seconds), Operators, seconds).operators

    def close(self) -> None:
        process, self._process, self._received = self._process, None, b""
        if process is not None:
            # Not closed politely: a run may take long, and nothing of it is needed.
            with contextlib.suppress(ProcessLookupError):
                # With the processes of its isolated instances.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _ask(self, request: Request, kind: Callable[..., Answer], seconds: float) -> Answer:
        if self._process is None:
            self._start()
            self._exchange(self._open, Opened, 0.0)
        return self._exchange(request, kind, seconds)

    def _start(self) -> None:
        # Closed with the process.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._temporary = tempfile.TemporaryDirectory(prefix="isochrone-profile-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "TMPDIR": self._temporary.name},
            # Ctrl-C is the command's alone: it then ends this process.
            start_new_session=True,
        )

    def _exchange(self, request: Request, kind: Callable[..., Answer], seconds: float) -> Answer:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(encode(request))
            process.stdin.flush()
        except OSError:
            raise self._ended() from None
        answer = self._receive(seconds + _PATIENCE_SECONDS)
        if isinstance(answer, Failed):
            raise RunFailed(answer.message)
        assert isinstance(answer, kind)  # type: ignore[arg-type]
        return answer  # type: ignore[return-value]

    def _receive(self, seconds: float) -> Response:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        ends = now_ns() + round(seconds * SECOND)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(max(0.0, (ends - now_ns()) / SECOND)):
                    self.close()
                    raise RunFailed(f"{self._label}: a run did not end within {seconds:.0f} s; it was ended")
                chunk = os.read(process.stdout.fileno(), _CHUNK)
                if not chunk:
                    raise self._ended()
                self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        try:
            return decode_response(line)
        except msgspec.DecodeError as error:
            self.close()
            raise RunFailed(f"{self._label}: its process sent no answer but {line[:80]!r} ({error})") from None

    def _ended(self) -> RunFailed:
        """The error of a process that has ended; the next request starts another one."""
        assert self._process is not None
        try:
            status = self._process.wait(_ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            status = 0
        last = self._last_line()
        self.close()
        if status == -signal.SIGKILL:
            how = "was killed, as the kernel does when memory is short"
        elif status < 0:
            how = f"crashed ({signal.Signals(-status).name})"
        else:
            how = f"ended with status {status}"
        return RunFailed(f"{self._label}: the process that ran it {how}{f'; it wrote: {last}' if last else ''}")

    def _last_line(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
