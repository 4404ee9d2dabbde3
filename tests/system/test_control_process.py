"""``isochrone control`` in processes of its own: it leads, answers, ends in good order, and another takes over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.control.api.serving import serve_api
from isochrone.errors import Unavailable

_LIMIT = 60.0


class ControlProcess:
    """One controller."""

    def __init__(self, directory: Path, name: str) -> None:
        self.log = directory / f"{name}.log"
        command = [
            *(str(Path(sys.executable).with_name("isochrone")), "control", "--store", f"sqlite:{directory}/fleet.db"),
            *("--fleet", "plant", "--name", name, "--listen", "127.0.0.1:0", "--lease-seconds", "5", "--log-json"),
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def url(self) -> str:
        return f"http://127.0.0.1:{until(self._port)}"

    def _port(self) -> int:
        return next((int(event["port"]) for event in self.events() if event["event"] == "listening"), 0)

    def get(self, path: str) -> Any:
        return httpx.get(self.url() + path, timeout=_LIMIT, trust_env=False).raise_for_status().json()


def until(look: Callable[[], Any]) -> Any:
    """What a look gives, as soon as it gives anything."""
    ends = time.monotonic() + _LIMIT
    while not (found := look()):
        assert time.monotonic() < ends
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def controller(directory: Path, name: str) -> Iterator[ControlProcess]:
    running = ControlProcess(directory, name)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait(_LIMIT)


def test_one_leads_and_when_it_ends_the_other_does(tmp_path: Path) -> None:
    with (
        controller(tmp_path, "c1") as one,
        controller(tmp_path, "c2") as other,
        httpx.Client(trust_env=False) as client,
    ):
        name = until(lambda: one.get("/v1/health")["leader"])
        leading, waiting = (one, other) if name == "c1" else (other, one)
        assert waiting.get("/v1/status")["fleet"] == "plant"
        # A stream that is open does not keep it from ending in good order.
        with client.stream("GET", f"{leading.url()}/v1/events?follow=1") as response:
            assert response.status_code == 200
            leading.process.send_signal(signal.SIGTERM)
            assert leading.process.wait(_LIMIT) == 0, leading.log.read_text()
        assert leading.events()[-1]["event"] == "stopped"
        until(lambda: waiting.get("/v1/health")["leader"] == ({"c1", "c2"} - {name}).pop())
        for each in (one, other):
            assert "Traceback" not in each.log.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--store", "file:x"], "sqlite:PATH"),
        (["--store", "sqlite:x.db", "--listen", "nowhere"], "expected HOST:PORT"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["control", "--fleet", "plant", *arguments])
    assert result.exit_code == 1
    assert said in result.output
    assert result.output.count("\n") == 1


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port}.*--listen"):
            asyncio.run(serve_api(Starlette(), "127.0.0.1", port))
