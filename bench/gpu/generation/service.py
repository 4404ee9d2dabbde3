"""The worker of the generation bench: ``isochrone serve`` with its metrics page, one variant loaded at a time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from bench.gpu.figures import ResultsFile
from bench.gpu.generation.load import Generators, Job, LoadFailed
from bench.gpu.generation.repository import Sizes, read_metrics, write_variant
from bench.gpu.generation.stream_figures import Streams
from bench.gpu.generation.workload import Flow
from bench.gpu.worker import SERVE
from bench.ports import free_ports
from bench.worker.peers.process import HOST, answers, running

#: A variant is loaded, and its graphs are captured.
LOAD_SECONDS = 15.0


class LoadRejected(RuntimeError):
    """A variant could not be loaded; the message is the worker's."""


class Server:
    """A running worker."""

    def __init__(self, url: str, metrics_url: str, log: Path, load_timeout: float) -> None:
        self.url, self.metrics_url, self._log = url, metrics_url, log
        self._client = httpx.Client(timeout=load_timeout, trust_env=False)

    def load(self, model: str) -> None:
        try:
            answer = self._client.post(f"{self.url}/v2/repository/models/{model}/load", json={})
        except httpx.TransportError as error:
            raise LoadRejected(f"{model}: {error}; {self.last_lines()}") from error
        if answer.status_code != 200:
            raise LoadRejected(f"{model}: {answer.text[:600]}")

    def unload(self, model: str) -> None:
        self._client.post(f"{self.url}/v2/repository/models/{model}/unload", json={})
        self.until(lambda: self._client.get(f"{self.url}/v2/models/{model}/ready").status_code != 200)
        # The answer comes before the memory is free.
        time.sleep(0.5)

    def metrics(self) -> dict[str, float]:
        return read_metrics(self._client.get(self.metrics_url).text)

    def until(self, done: Callable[[], bool], seconds: float = 60.0) -> bool:
        ends = time.monotonic() + seconds
        while not done():
            if time.monotonic() > ends:
                return False
            time.sleep(0.01)
        return True

    def last_lines(self, count: int = 5) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-count:])


@contextmanager
def served(repository: Path, directory: Path, load_timeout: float) -> Iterator[Server]:
    """The worker over a repository while the block runs; nothing is loaded yet."""
    http_port, grpc_port, metrics_port = free_ports(3)
    ports = ("--http-port", str(http_port), "--grpc-port", str(grpc_port), "--metrics-port", str(metrics_port))
    command = [*SERVE, repository, "--host", HOST, "--model-control-mode", "explicit", *ports]
    url, log = f"http://{HOST}:{http_port}", directory / "worker.log"
    with running("isochrone", command, lambda: answers(f"{url}/v2/health/live"), log=log, timeout_seconds=120):
        yield Server(url, f"http://{HOST}:{metrics_port}/metrics", log, load_timeout)


class Bench:
    """What every part needs."""

    def __init__(
        self,
        given: argparse.Namespace,
        server: Server,
        generators: Generators,
        results: ResultsFile,
        version: Path,
        repository: Path,
        ends: float,
    ) -> None:
        self.given, self.server, self.generators, self.results = given, server, generators, results
        self.sizes: Sizes = given.sizes
        self.version = version
        self._repository = repository
        #: Of the part that runs.
        self.ends = ends
        #: What there was no time for.
        self.left_out: list[str] = []
        self._seed = 0

    @property
    def tokenizer_file(self) -> Path:
        return self.version / "tokenizer.json"

    def has_time(self, seconds: float, *cells: str) -> bool:
        """Whether cells that take so long may still begin; otherwise they are noted."""
        if seconds < self.time_left():
            return True
        self.left_out += cells
        return False

    def time_left(self) -> float:
        return self.ends - time.monotonic()

    @contextmanager
    def variant(self, name: str, parameters: Mapping[str, Any] | None = None) -> Iterator[str]:
        """A model with these parameters, loaded while the block runs. Raises ``LoadRejected``."""
        defaults = {
            # Sizes of batches up to it are captured at each load, which takes a while.
            "max_rows": min(64, self.sizes.rows),
            "kv_cache_tokens": self.sizes.cache_tokens,
            "max_waiting": 1_000_000,
        }
        texts = {key: str(value) for key, value in {**defaults, **(parameters or {})}.items()}
        write_variant(self._repository, name, self.version, texts, self.given.device)
        began = time.monotonic()
        self.server.load(name)
        self.given.say(f"{name}: loaded in {time.monotonic() - began:.1f} s")
        try:
            yield name
        finally:
            self.server.unload(name)

    def run(self, model: str, flows: tuple[Flow, ...], seconds: float, grace: float = 0.0) -> Streams:
        """Raises ``LoadFailed``."""
        self._seed += 1  # no prompt is sent twice
        job = Job(self.server.url, model, self.tokenizer_file, flows, seconds, grace, self._seed)
        streams = self.generators.run(job)
        idle = self.server.until(lambda: self.server.metrics().get("running", 0) == 0, 30)
        if not idle:
            raise LoadFailed("sequences run although every stream has ended")
        return streams

    def chat(self, streams: int = 0, rate: float = 0.0, **parameters: Any) -> Flow:
        """Requests of mixed lengths."""
        return Flow("chat", self.sizes.prompts, self.sizes.answers, streams, rate, parameters)
