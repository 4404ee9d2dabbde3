"""A controller on a store of its own, in a process of its own, which has to end well."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from logged_ports import wait_ports
from up_process import ISOCHRONE
from watching import wait_for

_SECONDS = 60.0


@dataclass
class AttackedController:
    process: subprocess.Popen[bytes]
    log: Path
    #: By service: "control", "xds", "scaler".
    ports: Mapping[str, int]

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def attacked_controller(
    folder: Path, *flags: str, services: tuple[str, ...] = ("control",)
) -> Iterator[AttackedController]:
    """It leads the fleet "plant". Beside a leader, nothing is in its log that only a fault can cause."""
    log = folder / "control.log"
    command = [
        *(*ISOCHRONE, "control", "--store", f"sqlite:{folder / 'fleet.db'}", "--fleet", "plant", "--no-console"),
        *("--listen", "127.0.0.1:0", "--log-json", *flags),
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        found = AttackedController(process, log, wait_ports(log, *services, lives=lambda: process.poll() is None))
        wait_for(lambda: "now leading" in found.log_text() or "leads" in found.log_text())
        yield found
        assert process.poll() is None, found.log_text()[-3000:]
        process.send_signal(signal.SIGTERM)
        assert process.wait(_SECONDS) == 0, found.log_text()[-3000:]
        assert "Traceback" not in found.log_text(), found.log_text()[-5000:]
    finally:
        process.kill()
        process.wait(_SECONDS)
