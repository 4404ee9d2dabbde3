"""The demo's fleet: ``isochrone up`` as a process, on the default ports or, if those are in use, on free ones.

It has its own state directory. Leaving the block stops the fleet; Linux also ends it when the demo itself is killed.
Must never signal a process that it did not start.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Self

from processes import START_SECONDS, STOP_SECONDS, DemoFailed, end_with, signals_held

from isochrone.control.fleet.bundled.writing import write_bundled

ISOCHRONE = (sys.executable, "-m", "isochrone")
USUAL_CONTROL = 8003
_USUAL_PORTS = (8000, 8001, USUAL_CONTROL, 9000, 9001)
_IS_UP = "Ctrl-C stops everything"


class FleetProcess:
    """One ``isochrone up``, with a second gateway beside the bundled one: versions must change on both at once."""

    def __init__(self, directory: Path, say: Callable[[str], None], *, free_ports: bool = False) -> None:
        self._log = directory / "up.log"
        self._say = say
        self._state = directory / "fleet"
        self.control_port = USUAL_CONTROL
        changes = [('"127.0.0.1:8000", metrics_port: 9000', '"127.0.0.1:8000", metrics_port: 9000, count: 2')]
        if free_ports or not all(map(_is_free, _USUAL_PORTS)):
            self.control_port = _free_port()
            changes = [
                ('"127.0.0.1:8000", metrics_port: 9000', '"127.0.0.1:0", metrics_port: 0, count: 2'),
                (f"127.0.0.1:{USUAL_CONTROL}", f"127.0.0.1:{self.control_port}"),
            ]
        path = write_bundled(self._state)
        text = path.read_text()
        for old, new in changes:
            if old not in text:
                raise DemoFailed(f"{path}: expected {old}, which the demo changes, given a file without it")
            text = text.replace(old, new)
        path.write_text(text)

    def __enter__(self) -> Self:
        self._say(f"$ isochrone up --state {self._state}")
        with signals_held(), self._log.open("w") as output:
            # In its own process group: Ctrl-C reaches the demo alone, which then stops the fleet.
            self._process = subprocess.Popen(
                [*ISOCHRONE, "up", "--state", str(self._state)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=partial(end_with, os.getpid()),
            )
        return self

    def wait_until_up(self) -> None:
        """Wait and show its output meanwhile."""
        give_up = time.monotonic() + START_SECONDS
        shown = 0
        while True:
            ended = self._process.poll()
            lines = self._log.read_text().splitlines()
            # The commands that it suggests work only while it runs, which is not for long.
            told = lines[: lines.index("")] if "" in lines else lines
            for line in told[shown:]:
                self._say(f"  {line}")
            shown = len(told)
            if any(_IS_UP in line for line in lines):
                return
            if ended is not None:
                raise DemoFailed(f"isochrone up ended with code {ended} before the fleet was up")
            if time.monotonic() > give_up:
                raise DemoFailed(f"the fleet was not up after {START_SECONDS:.0f} s; its logs are in {self._state}")
            time.sleep(0.02)

    def status(self) -> dict[str, Any]:
        """The status as the controller reports it."""
        status: dict[str, Any] = json.loads(_get(f"127.0.0.1:{self.control_port}", "/v1/status"))
        return status

    def held_ms(self) -> dict[str, float]:
        """By gateway: the total time that strict switches have held requests."""
        held = {}
        for gateway in self.status()["gateways"]:
            page = _get(gateway["metrics"], "/metrics")
            match = re.search(r"^isochrone_gateway_hold_seconds_sum (\S+)$", page, re.MULTILINE)
            held[gateway["name"]] = float(match[1]) * 1000 if match is not None else 0.0
        return held

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A second Ctrl-C must not interrupt this: it would leave processes behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if self._process.poll() is None:
            self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            code = -signal.SIGKILL
        # The first error is the one to report; a fleet that was still starting may exit with another code.
        if code != 0 and kind is None:
            raise DemoFailed(f"isochrone up ended with code {code}, expected 0; its output is in {self._log}")


def _get(address: str, path: str) -> str:
    with closing(http.client.HTTPConnection(address, timeout=10)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            raise DemoFailed(f"GET {address}{path} was answered {response.status}: {text}")
        return text


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    # Below 32768, where Linux begins to give ports to outgoing connections: one of these may take a port at any moment.
    draw = random.SystemRandom()
    while not _is_free(port := draw.randrange(10_000, 32_000)):
        pass
    return port
