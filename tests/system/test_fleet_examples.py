"""The commands of README and docs that need a fleet, page by page, in their order.

Each page uses the bundled fleet on free ports. ``isochrone up`` in a page starts it; for a page without it, a fleet is
started first.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest
from typer.testing import CliRunner

from bench.engines.ray_cluster import RayNodes, loopback_places
from bench.ports import ports_in_a_row
from documented import blocks, check_installable, is_of_a_fleet, lines_of, words_of
from isochrone.cli.main import app
from logged_ports import wait_ports
from up_process import ISOCHRONE, SECONDS, Up, bundled_fleet, start_up


class PageFleet:
    """The fleet of one page, as far as the page has come."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._up: Up | None = None
        self._ups = 0
        self._file = directory
        self._port = 0
        self._gateway = ""
        self._ray: RayNodes | None = None
        self._background: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, command: str) -> None:
        words = words_of(command)
        match words[:2]:
            case ["isochrone", "infer"] if words[-1] == "&":
                self._begin([*words[1:-1], "--url", f"http://{self.gateway}"])
            case ["pip", "install"]:
                check_installable(command)
            case ["ray", "start"]:
                self._ray = self._stack.enter_context(RayNodes(loopback_places(1)))
            case ["isochrone", "up"]:
                self._start(words[2:])
            case ["isochrone", "serve"]:
                self._join(words[1:])
            case ["isochrone", "control"]:
                self._control_beside(words[1:])
            case ["isochrone", "infer"]:
                self._ask(*words[1:], "--url", f"http://{self.gateway}")
            case ["isochrone", "apply"]:
                self._edit()
                self._control(["apply", str(self._file), *words[3:]])
            case ["isochrone", "init"]:
                self._init()
            case ["isochrone", "validate"]:
                self._ask("validate", str(self._file))
            case ["isochrone", "logs"]:
                self._ensure()
                self._ask(*words[1:], "--state", str(self._file.parent))
            case ["isochrone", "top"]:
                self._control([*words[1:], "--interval", "0.2"])
            case ["isochrone", _]:
                self._control(words[1:])
            case _:
                pytest.fail(f"no rule to run {command!r}")

    def run_script(self, script: str) -> str:
        text = script.replace("localhost:8000", self.gateway)
        ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    @property
    def gateway(self) -> str:
        self._ensure()
        return self._gateway

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self._ask("status", "--json", "--api", f"http://127.0.0.1:{self._port}"))
        return status

    def _ensure(self) -> None:
        if self._up is None:
            self._start([])

    def _start(self, words: list[str]) -> None:
        """Start a new fleet, after stopping the one before."""
        self.stop()
        self._ups += 1
        directory = self._directory / str(self._ups)
        self._port = ports_in_a_row(1)
        self._file = bundled_fleet(directory, workers=1, control_port=self._port)
        options = [str(self._file)] if words else ["--state", str(directory)]
        if "ray" in words:
            assert self._ray is not None
            options += ["--engine", "ray", "--address", self._ray.address]
        self._up = self._stack.enter_context(start_up(*options, log=self._directory / f"up-{self._ups}.log"))
        self._up.commands()
        self._gateway = self.status()["gateways"][0]["address"]

    def stop(self) -> None:
        """As Ctrl-C does, once the commands in the background have ended."""
        while self._background:
            assert self._background.pop().wait(SECONDS) == 0
        if self._up is not None:
            self._up.process.send_signal(signal.SIGINT)
            assert self._up.process.wait(SECONDS) == 0, self._up.log.read_text()

    def _begin(self, words: list[str]) -> None:
        """Run it in the background."""
        process = subprocess.Popen([*ISOCHRONE, *words], stdout=subprocess.DEVNULL)
        self._stack.enter_context(process)
        # Before the fleet ends, if the page fails.
        self._stack.callback(process.kill)
        self._background.append(process)

    def _control(self, words: list[str]) -> None:
        self._ensure()
        self._ask(*words, "--api", f"http://127.0.0.1:{self._port}")

    def _ask(self, *words: str) -> str:
        """Run it in this process: importing the commands each time would take longer than running them."""
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 0, f"{words}: {ended.output}"
        assert ended.stdout
        return ended.stdout

    def _edit(self) -> None:
        """Change the file, so that there is something to apply."""
        text = self._file.read_text()
        self._file.write_text(re.sub(r"deadline_ms: (\d+)", lambda found: f"deadline_ms: {int(found[1]) + 1}", text))

    def _init(self) -> None:
        """Write a file for the bundled models; the fleet itself has other ports."""
        self._file = bundled_fleet(self._directory / "init", workers=1, control_port=ports_in_a_row(1))
        self._file.unlink()
        self._ask("init", str(self._file.parent))

    def _control_beside(self, words: list[str]) -> None:
        """Start a further controller of this fleet, which serves xDS."""
        self._ensure()
        places = {
            "--store": f"sqlite:{self._file.parent / 'state' / 'fleet.db'}",
            "--xds-listen": "127.0.0.1:0",
        }
        words = [places.get(before, word) for before, word in zip(["", *words], words, strict=False)]
        log = self._directory / "control.log"
        with log.open("wb") as output:
            process = subprocess.Popen([*ISOCHRONE, *words, "--log-json"], stdout=output, stderr=output)
        try:
            assert wait_ports(log, "xds", lives=lambda: process.poll() is None)["xds"]
        finally:
            process.terminate()
            assert process.wait(SECONDS) == 0

    def _join(self, words: list[str]) -> None:
        """Start a worker as on another machine, here on this one with this fleet's store."""
        self._ensure()
        places = {
            "--host": "127.0.0.1",
            "--store": f"sqlite:{self._file.parent / 'state' / 'fleet.db'}",
            "--fleet": "demo",
        }
        words = [places.get(before, word) for before, word in zip(["", *words], words, strict=False)]
        words[1] = str(self._file.parent / "models")
        ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
        with (self._directory / "serve.log").open("wb") as log:
            process = subprocess.Popen([*ISOCHRONE, *words, *ports], stdout=log, stderr=log)
        name = words[words.index("--name") + 1]
        try:
            ends = time.monotonic() + SECONDS
            while name not in [worker["name"] for worker in self.status()["workers"]]:
                assert time.monotonic() < ends
                assert process.poll() is None, (self._directory / "serve.log").read_text()
                time.sleep(0.1)
        finally:
            process.terminate()
            process.wait(SECONDS)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[PageFleet]:
    with PageFleet(tmp_path) as fleet:
        yield fleet


def pages() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for page, text in blocks("sh"):
        if is_of_a_fleet(text):
            found.setdefault(page.name, []).extend(lines_of(text))
    return found


def test_the_pages_lead_through_a_fleet() -> None:
    assert pages().keys() >= {"README.md", "fleet.md", "rollouts.md"}
    shown = {words_of(line)[1] for line in pages()["README.md"]}
    assert shown >= {"up", "infer", "rollout", "status", "top", "events"}


@pytest.mark.long
@pytest.mark.parametrize("page", pages())
def test_the_commands_of_a_page(page: str, fleet: PageFleet) -> None:
    for command in pages()[page]:
        fleet.run(command)
    for shown_on, script in blocks("python"):
        if shown_on.name == page and "x-isochrone-epoch" in script:
            assert re.match(r"epoch \d+ \[", fleet.run_script(script))
    fleet.stop()
