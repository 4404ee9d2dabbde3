"""``isochrone up`` as a process: the bundled fleet on ports that no other test has, and every process of it gone in the
end, however the test ended."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.ports import ports_in_a_row
from isochrone.control.fleet.bundled.writing import write_bundled

SECONDS = 120.0
ISOCHRONE = (sys.executable, "-m", "isochrone")


def bundled_fleet(directory: Path, workers: int = 2, control_port: int = 0) -> Path:
    """The bundled fleet, written there on free ports."""
    path = write_bundled(directory)
    text = path.read_text()
    for old, new in (
        ("127.0.0.1:8003", f"127.0.0.1:{control_port or ports_in_a_row(1)}"),
        ('"127.0.0.1:8000", metrics_port: 9000', '"127.0.0.1:0", metrics_port: 0'),
        ("workers: 3", f"workers: {workers}"),
    ):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


class Up:
    """One ``isochrone up`` and what it printed."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def wait_for(self, text: str) -> str:
        ends = time.monotonic() + SECONDS
        while text not in (said := self.log.read_text()):
            assert time.monotonic() < ends, said
            assert self.process.poll() is None, said
            time.sleep(0.02)
        return said

    def commands(self) -> list[list[str]]:
        """The commands it tells a newcomer to try."""
        said = self.wait_for("Ctrl-C stops everything")
        return [line.split()[1:] for line in said.splitlines() if line.startswith("  isochrone ")]

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def start_up(*words: str, log: Path) -> Iterator[Up]:
    with log.open("wb") as file, subprocess.Popen([*ISOCHRONE, "up", *words], stdout=file, stderr=file) as process:
        started = Up(process, log)
        try:
            yield started
        finally:
            left = started.children() if process.poll() is None else []
            process.kill()
            process.wait()
            psutil.wait_procs(left, timeout=SECONDS)


def isochrone(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ISOCHRONE, *words], capture_output=True, text=True, timeout=SECONDS, check=False)
