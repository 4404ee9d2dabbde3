"""How long it takes until the first answer: from ``pip install``, and from the start of a process.

Ours beside LitServe and BentoML: each serves a function that returns 64 floats, and gets one JSON request again and
again until it is answered. From the start: the median of the rounds, in turns. From ``pip install``: one fresh virtual
environment each, packages from the configured index without pip's cache, then one start in it. Ours is a wheel of this
working tree, built before the clock starts.

    python -m bench.client.first_inference [--rounds 3] [--install] [--servers isochrone,litserve,bentoml]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bench.ports import free_ports
from bench.worker.peers.process import HOST, REPOSITORY_ROOT, SERVERS, environment_python, running, scratch

VALUES = [1.0] * 64
#: The three lines, with a port.
OURS = """
import sys, isochrone
def identity(x): return {"y": x}
isochrone.serve(identity, inputs={"x": "FP32[64]"}, http_port=int(sys.argv[1]), grpc_port=0, metrics_port=0)
"""
_POLL_SECONDS = 0.005
_ASK_SECONDS = 0.5
_START_SECONDS = 120.0


@dataclass(frozen=True)
class Server:
    """How a server is installed, started and asked."""

    package: str
    command: Callable[[Path, int], list[str]]
    path: str
    request: Mapping[str, object]
    environment: Mapping[str, str]


def _tensor() -> Mapping[str, object]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [64], "data": VALUES}]}


def _bentoml(python: Path, port: int) -> list[str]:
    words = (str(python), "-m", "bentoml", "serve", "bentoml_identity:Identity")
    return [*words, "--working-dir", str(SERVERS), "--host", HOST, "--port", str(port)]


SERVED = {
    "isochrone": Server(
        "isochrone",
        lambda python, port: [str(python), "-c", OURS, str(port)],
        "/v2/models/identity/infer",
        _tensor(),
        {},
    ),
    "litserve": Server(
        "litserve",
        lambda python, port: [str(python), str(SERVERS / "litserve_identity.py"), str(port)],
        "/predict",
        {"values": VALUES},
        {},
    ),
    "bentoml": Server("bentoml", _bentoml, "/identity", {"values": VALUES}, {"BENTOML_DO_NOT_TRACK": "true"}),
}


def is_answered(port: int, server: Server) -> bool:
    """Asks for half a second; whether an answer came."""
    ends = time.monotonic() + _ASK_SECONDS
    while time.monotonic() < ends:
        try:
            with closing(http.client.HTTPConnection(HOST, port, timeout=10)) as connection:
                body = json.dumps(server.request)
                connection.request("POST", server.path, body, {"content-type": "application/json"})
                response = connection.getresponse()
                content = response.read()
                if response.status == 200:
                    assert content.count(b"1") >= len(VALUES), content
                    return True
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(_POLL_SECONDS)
    return False


def start_seconds(name: str, python: Path) -> float:
    """From the start of the process to its first answer."""
    server = SERVED[name]
    (port,) = free_ports(1)
    with scratch(f"first-{name}") as directory:
        environment = {
            **server.environment,
            "BENTOML_HOME": str(directory / "home"),
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        }
        if name == "isochrone" and python == Path(sys.executable):
            environment["PYTHONPATH"] = str(REPOSITORY_ROOT / "src")
        began = time.monotonic()
        with running(
            name,
            server.command(python, port),
            lambda: is_answered(port, server),
            log=directory / "log",
            environment=environment,
            timeout_seconds=_START_SECONDS,
        ):
            return time.monotonic() - began


def built_wheel(directory: Path) -> Path:
    """A wheel of the working tree, with its hot modules as a plain ``pip install .`` makes them."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(directory), str(REPOSITORY_ROOT)]
    subprocess.run(command, check=True)
    return next(directory.glob("*.whl"))


def install_seconds(package: str, directory: Path) -> tuple[Path, float]:
    """(the interpreter of a fresh environment, the time of pip install in it)."""
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    python = directory / "bin" / "python"
    # Without the import path of this bench.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), "-m", "pip", "install", "-q", "--no-cache-dir", "--disable-pip-version-check", package]
    began = time.monotonic()
    subprocess.run(command, check=True, env=environment)
    return python, time.monotonic() - began


def print_table(title: str, rows: Mapping[str, tuple[str, ...]], columns: tuple[str, ...]) -> None:
    print(f"\n{title}")
    print(f"{'server':14}" + "".join(f"{column:>24}" for column in columns))
    for name, cells in rows.items():
        print(f"{name:14}" + "".join(f"{cell:>24}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--install", action="store_true", help="also from pip install, once")
    parser.add_argument("--servers", default=",".join(SERVED))
    arguments = parser.parse_args()
    names = arguments.servers.split(",")
    pythons = {name: Path(sys.executable) if name == "isochrone" else environment_python(name) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(arguments.rounds):
        for name in names if number % 2 else names[::-1]:
            times[name].append(start_seconds(name, pythons[name]))
    rows = {
        name: (f"{statistics.median(found):.2f} s", f"{min(found):.2f} to {max(found):.2f} s")
        for name, found in times.items()
        if found
    }
    print_table("from the start of the process to the first answer", rows, ("median", "range"))
    if not arguments.install:
        return
    installed: dict[str, tuple[str, ...]] = {}
    with scratch("first-install") as directory:
        packages = {name: SERVED[name].package for name in names}
        if "isochrone" in packages:
            packages["isochrone"] = str(built_wheel(directory))
        for name, package in packages.items():
            python, seconds = install_seconds(package, directory / name)
            first = start_seconds(name, python)
            installed[name] = (f"{seconds:.1f} s", f"{first:.2f} s", f"{seconds + first:.1f} s")
    print_table("from pip install to the first answer", installed, ("pip install", "first start", "together"))


if __name__ == "__main__":
    main()
