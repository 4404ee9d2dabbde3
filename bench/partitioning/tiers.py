"""The two workers of a run: real processes in the emulated network. The edge sends to the core over the link."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.links.network import FAR, NEAR
from bench.ports import free_ports
from bench.worker.peers.process import answers, running

_FLAGS = ("--model-control-mode", "explicit", "--allow-file-overrides")
_LOAD_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Tier:
    """A worker: where it is, over no link, and what it can load."""

    name: str
    port: int
    repository: Path

    @property
    def near(self) -> str:
        return f"{NEAR}:{self.port}"

    @property
    def far(self) -> str:
        """Over the link."""
        return f"{FAR}:{self.port}"

    def load(self, model: str) -> None:
        self._call(f"/v2/repository/models/{model}/load")

    def unload(self, model: str) -> None:
        self._call(f"/v2/repository/models/{model}/unload")

    def compute_totals(self, model: str) -> tuple[int, int]:
        """Requests that the worker has computed, and the nanoseconds that this took."""
        answer = httpx.get(f"http://{self.near}/v2/models/{model}/stats", timeout=_LOAD_SECONDS, trust_env=False)
        answer.raise_for_status()
        found = answer.json()["model_stats"][0]["inference_stats"]["compute_infer"]
        return int(found["count"]), int(found["ns"])

    def _call(self, path: str) -> None:
        answer = httpx.post(f"http://{self.near}{path}", json={}, timeout=_LOAD_SECONDS, trust_env=False)
        if answer.status_code != 200:
            raise RuntimeError(f"{self.name}: {path} answered {answer.status_code}: {answer.text[:500]}")


@contextmanager
def worker(
    name: str,
    directory: Path,
    repository: Path,
    environment: Mapping[str, str] | None = None,
    flags: tuple[str, ...] = _FLAGS,
    port: int = 0,
    metrics_port: int = 0,
) -> Iterator[Tier]:
    """Runs while the block does. ``repository`` is made if it does not exist."""
    repository.mkdir(parents=True, exist_ok=True)
    free, grpc = free_ports(2)
    http = port or free
    metrics = ("--metrics-port", str(metrics_port)) if metrics_port else ("--no-allow-metrics",)
    command: list[str | Path] = [
        *(Path(sys.executable).parent / "isochrone", "serve", repository, "--host", NEAR),
        *("--http-port", str(http), "--grpc-port", str(grpc), *metrics, *flags),
    ]
    tier = Tier(name, http, repository)
    # A worker that serves no model yet is live, and not ready.
    url = f"http://{tier.near}/v2/health/{'live' if flags == _FLAGS else 'ready'}"
    with running(name, command, lambda: answers(url), log=directory / f"{name}.log", environment=environment):
        yield tier
