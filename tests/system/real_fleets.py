"""Whole fleets for tests: started by ``isochrone up`` on ports of their own, driven by the API and by the commands.

The commands run inside the test's process, against real controllers: what they print and how they end is the same, and
a start of Python is saved. Must never leave a process behind.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from typer.testing import CliRunner

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import Service, write_repository
from bench.control.running_fleet import CONTROLLER, RunningFleet
from isochrone.cli.main import app

LIMIT = 120.0
_Found = TypeVar("_Found")


def until(look: Callable[[], _Found], what: str = "") -> _Found:
    """What a look gives, as soon as it gives anything."""
    ends = time.monotonic() + LIMIT
    while not (found := look()):
        assert time.monotonic() < ends, f"waited {LIMIT:g} s in vain{f' for {what}' if what else ''}"
        time.sleep(0.02)
    return found


def small_fleet(directory: Path, shape: Shape | None = None, versions: int = 3) -> SupervisedFleet:
    """Not started yet: ``with small_fleet(...) as fleet``. Its models are in ``directory / "models"``."""
    write_repository(directory / "models", versions, Service(milliseconds=2.0))
    shape = shape or Shape(workers=2, gateways=1, controllers=1)
    return SupervisedFleet(directory / "fleet", directory / "models", shape)


def rewritten(fleet: SupervisedFleet, change: Callable[[dict[str, Any]], None]) -> Path:
    """The fleet's file, changed and written again; nothing is applied."""
    document = yaml.safe_load(fleet.file.read_text())
    change(document)
    fleet.file.write_text(yaml.safe_dump(document, sort_keys=False))
    return fleet.file


@dataclass(frozen=True)
class Ended:
    """A command that has run."""

    status: int
    said: str

    @property
    def data(self) -> Any:
        assert self.status == 0, self.said
        return json.loads(self.said)


def command(fleet: RunningFleet, *words: str) -> Ended:
    """``isochrone WORDS`` against the fleet's first controller."""
    result = CliRunner().invoke(app, [*words, "--api", f"http://{fleet.of(CONTROLLER)[0].address}"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Ended(result.exit_code, result.output)


def applied(fleet: SupervisedFleet) -> Ended:
    """``isochrone apply`` of the fleet's file as it is now; it must be taken."""
    ended = command(fleet, "apply", str(fleet.file), "--yes")
    assert ended.status == 0, ended.said
    return ended


@dataclass(frozen=True)
class Answered:
    """An answer over HTTP, good or bad."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def version(self) -> str:
        assert self.status == 200, self.body
        return str(self.body["model_version"])


def ask(address: str, model: str, version: str = "", **headers: str) -> Answered:
    """One request to a gateway or worker; names of headers with ``_`` for ``-``."""
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"
    body = json.dumps({"inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [21]}]}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://{address}{path}", body, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            return Answered(answer.status, _lower(answer.headers), json.load(answer))
    except urllib.error.HTTPError as error:
        with error:
            return Answered(error.code, _lower(error.headers), json.loads(error.read() or b"null"))


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def served_by(worker: str) -> dict[str, set[str]]:
    """By model: the versions that a worker has ready."""
    request = urllib.request.Request(f"http://{worker}/v2/repository/index", b"{}")
    with urllib.request.urlopen(request, timeout=LIMIT) as answer:
        rows = json.load(answer)
    found: dict[str, set[str]] = {}
    for row in rows:
        if row.get("state") == "READY":
            found.setdefault(row["name"], set()).add(row["version"])
    return found


def pids(fleet: RunningFleet) -> dict[str, int | None]:
    return {name: fleet.pid(name) for name in fleet.parts}


def requests_had(metrics_port: int) -> int:
    """Requests that a worker has answered so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=LIMIT) as answer:
        lines = answer.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("nv_inference_request_success{")))
