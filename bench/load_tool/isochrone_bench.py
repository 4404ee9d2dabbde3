"""Runs `isochrone bench` of this source tree and reads its JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import isochrone
from bench.worker.load import LoadFailed

#: Of the package that this process runs, wherever a command is started.
ENVIRONMENT = {"PYTHONPATH": str(Path(isochrone.__file__).resolve().parents[1])}
ISOCHRONE = (sys.executable, "-m", "isochrone")


def bench(url: str, model: str, *words: str, timeout_seconds: float = 600.0) -> dict[str, Any]:
    """The figures of one use of the command. Raises ``LoadFailed``."""
    command = [*ISOCHRONE, "bench", url, "--model", model, "--json", *words]
    try:
        finished = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
            env={**os.environ, **ENVIRONMENT},
        )
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"isochrone bench did not finish in {timeout_seconds:.0f} s") from None
    if finished.returncode not in (0, 1) or not finished.stdout:
        raise LoadFailed(f"isochrone bench exited with {finished.returncode}: {finished.stderr.strip()[-500:]}")
    figures: dict[str, Any] = json.loads(finished.stdout)
    return figures
