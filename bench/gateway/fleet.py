"""Real workers for the gateway's benches: `isochrone serve`, each with a model that sleeps instead of computing.

Four workers, a proxy and a generator share a machine of two cores. With a model that used CPU, the bench would measure
the kernel's scheduler. A model that sleeps for its service time, a few milliseconds on a fixed number of instances,
leaves the cores idle, and queueing alone decides, which a policy can influence. Only workers that were started here are
ended here.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.gateway.proxies.upstream import Upstream
from bench.ports import free_ports
from bench.worker.models import IDENTITY_WIDTH, instance_group, tensors
from bench.worker.peers import Peer
from bench.worker.peers.process import HOST, answers, installed_version, running, scratch

MODEL = "sleeper"

_SOURCE = '''"""Sleeps for its service time, drawn around the mean from a seed, and hands its input back."""

import random
import time


class Model:
    def load(self, context):
        self.mean = float(context.parameters["service_ms"]) / 1000
        self.spread = float(context.parameters["spread"])
        self.random = random.Random(context.instance)

    def infer(self, inputs):
        time.sleep(self.mean * self.random.uniform(1 - self.spread, 1 + self.spread))
        return {"OUTPUT0": inputs["INPUT0"]}
'''


@dataclass(frozen=True)
class Service:
    """The capacity of a worker: instances, and mean service time. A `spread` of 0.5 means from 0.5 to 1.5 times it."""

    service_ms: float = 5.0
    spread: float = 0.5
    instances: int = 2
    priority_levels: int = 0

    @property
    def requests_per_second(self) -> float:
        return self.instances / self.service_ms * 1000


@dataclass(frozen=True)
class Worker:
    """A running worker."""

    peer: Peer
    upstream: Upstream

    def signal(self, number: signal.Signals) -> None:
        """Stop, continue or kill it."""
        os.kill(self.peer.pid, number)


def write_model(directory: Path, service: Service) -> Path:
    """Write the repository; returns its directory."""
    version = directory / MODEL / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_SOURCE)
    levels = service.priority_levels
    rules = f"priority_levels: {levels} default_priority_level: {levels}" if levels else ""
    parameters = "".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
        for key, value in (("service_ms", service.service_ms), ("spread", service.spread))
    )
    (directory / MODEL / "config.pbtxt").write_text(
        f'name: "{MODEL}"\nbackend: "python"\nmax_batch_size: 1\n{tensors(str(IDENTITY_WIDTH))}'
        f"dynamic_batching {{ {rules} }}\n{instance_group(service.instances)}{parameters}"
    )
    return directory


@contextmanager
def worker(service: Service) -> Iterator[Worker]:
    """One worker while the block runs; it may have been killed by its end."""
    python = Path(sys.executable)
    with scratch("sleeper") as directory:
        repository = write_model(directory / "models", service)
        http_port, grpc_port = free_ports(2)
        url = f"http://{HOST}:{http_port}"
        log = directory / "worker.log"
        command: list[str | Path] = [
            *(python.parent / "isochrone", "serve", repository, "--host", HOST, "--no-allow-metrics"),
            *("--http-port", str(http_port), "--grpc-port", str(grpc_port)),
        ]
        with running("worker", command, lambda: answers(f"{url}/v2/health/ready"), log=log) as pid:
            peer = Peer("worker", installed_version(python, "isochrone"), pid, log, (MODEL,), http_url=url)
            started = Worker(peer, Upstream(http_port, grpc_port))
            try:
                yield started
            finally:
                if peer.alive():
                    # A stopped process does not receive SIGTERM.
                    started.signal(signal.SIGCONT)


class Fleet:
    """Several workers. One that died is replaced on demand."""

    def __init__(self, count: int, service: Service) -> None:
        self.service = service
        self._stacks = [ExitStack() for _ in range(count)]
        self.workers: list[Worker] = []

    def __enter__(self) -> "Fleet":
        try:
            for stack in self._stacks:
                self.workers.append(stack.enter_context(worker(self.service)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for stack in self._stacks:
            stack.close()

    def replace_dead(self) -> None:
        """Replace the workers that have died."""
        for index, one in enumerate(self.workers):
            if not one.peer.alive():
                self._stacks[index].close()
                self.workers[index] = self._stacks[index].enter_context(worker(self.service))

    @property
    def upstreams(self) -> list[Upstream]:
        return [one.upstream for one in self.workers]

    @property
    def requests_per_second(self) -> float:
        """The highest possible rate of all workers together."""
        return self.service.requests_per_second * len(self.workers)

    def cpu_seconds(self) -> float:
        return sum(one.peer.cpu_seconds() for one in self.workers if one.peer.alive())
