"""Runs one task in a child process with limits on time and memory.

Libraries that change graphs may crash, hang or fill the memory: that ends the child, and its task has a reason instead
of an answer. A child also ends with its parent, however that ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAIN = "isochrone.optimize.trials.child"
_LONGEST_REASON = 400


class TaskFailed(Exception):
    """The reason why a task has no answer."""


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float = 120.0
    memory: int = 0
    """Bytes of data of the process; 0: no limit."""


def run_task(task: str, limits: Limits, /, **arguments: Any) -> dict[str, Any]:
    """The answer of ``task`` (a function of ``child_tasks``), whose arguments and answer are JSON."""
    with tempfile.TemporaryDirectory(prefix="isochrone-task-") as folder:
        request, answer, errors = (Path(folder) / name for name in ("request.json", "answer.json", "errors.txt"))
        request.write_text(json.dumps({"task": task, "arguments": arguments, "memory": limits.memory}))
        command = [sys.executable, "-m", _MAIN, str(os.getpid()), str(request), str(answer)]
        process: subprocess.Popen[bytes] | None = None
        try:
            with errors.open("wb") as output:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            status = process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            raise TaskFailed(f"took longer than {limits.seconds:.0f} s; more --seconds allow more") from None
        finally:
            # An interrupt while it starts: it ends itself, with this process.
            if process is not None:
                process.kill()
                process.wait()
        if status == 0 and answer.exists():
            found: dict[str, Any] = json.loads(answer.read_text())
            if "failed" in found:
                raise TaskFailed(_short(found["failed"]))
            return found
        raise TaskFailed(_ended(status, errors.read_text(errors="replace"), limits))


def _ended(status: int, errors: str, limits: Limits) -> str:
    if "bad_alloc" in errors or "MemoryError" in errors:
        return f"needed more than {limits.memory / 2**30:.1f} GiB of memory"
    if status < 0:
        return f"its process ended by {signal.Signals(-status).name}"
    lines = [line for line in errors.splitlines() if line.strip()]
    return _short(lines[-1] if lines else f"its process ended with status {status}")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_REASON else line[:_LONGEST_REASON] + " …"
