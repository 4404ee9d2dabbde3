"""A real Envoy that asks a real ``isochrone pick``, for one test each."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gateway.proxies.envoy import binary
from bench.ports import free_ports
from isochrone.cli.render.envoy_bootstrap import EnvoySettings, bootstrap
from server_process import ServerProcess

_SECONDS = 60.0


@dataclass(frozen=True)
class Envoy:
    """One running Envoy."""

    port: int
    admin_port: int
    log_path: Path

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stats(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/stats", timeout=_SECONDS) as answer:
            return str(answer.read().decode())


@contextlib.contextmanager
def start_envoy(
    directory: Path,
    picker_port: int,
    mode: str = "NONE",
    *,
    fallback: Sequence[ServerProcess] = (),
    change: Callable[[list[dict[str, Any]]], None] | None = None,
) -> Iterator[Envoy]:
    """Envoy by the configuration of ``isochrone render envoy``. ``change`` changes its filters."""
    port, admin_port = free_ports(2)
    settings = EnvoySettings(
        listen=("127.0.0.1", port),
        picker=("127.0.0.1", picker_port),
        body_mode=mode,
        fallback=tuple(("127.0.0.1", worker.http_port) for worker in fallback),
        admin=("127.0.0.1", admin_port),
        # A machine that is busy with tests must not make it give the picker up.
        message_timeout=30.0,
    )
    document = bootstrap(settings)
    if change is not None:
        chain = document["static_resources"]["listeners"][0]["filter_chains"][0]
        change(chain["filters"][0]["typed_config"]["http_filters"])
    configuration, log_path = directory / "envoy.json", directory / "envoy.log"
    configuration.write_text(json.dumps(document, indent=1))
    command = [str(binary()), "-c", str(configuration), "--concurrency", "1", "--disable-hot-restart"]
    with log_path.open("wb") as log:
        process = subprocess.Popen([*command, "--log-level", "warning"], stdout=log, stderr=subprocess.STDOUT)
    envoy = Envoy(port, admin_port, log_path)
    try:
        until(lambda: _is_ready(envoy, process))
        yield envoy
    finally:
        process.kill()
        process.wait()


def _is_ready(envoy: Envoy, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, envoy.log_path.read_text(errors="replace")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{envoy.admin_port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)
