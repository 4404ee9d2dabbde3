"""Many workers in one process: listeners that answer health checks, indexes and inferences of a thousand models.

`python -m bench.gateway.housekeeping.workers WORKERS MODELS` prints the ports. Lines of JSON on its input change what
they serve: `{"versions": {"model-7": ["1", "2"]}}` for all workers, `{"ready": [NUMBER, …]}` for the set of workers
that are ready, `{"silent": [NUMBER, …]}` for those that answer nothing until they are named no more. Load reports are
sent on request, a different one each time.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from itertools import cycle

import uvloop

from bench.gateway.housekeeping.fleet_records import digest, model_names
from isochrone.errors import NotFound
from isochrone.protocol.headers import orca
from isochrone.protocol.rest.answers import ErrorRoute
from isochrone.wire.exchange import Exchange, Head, Headers, Route
from isochrone.wire.listening.listener import Listener

_JSON: Headers = ((b"content-type", b"application/json"),)
_REPORTS = 499


def _report(number: int) -> bytes:
    return orca.orca_text(
        {
            "named_metrics.free_memory_bytes": 8e9,
            "named_metrics.queue_depth": float(number % 3),
            "named_metrics.in_flight": float(number % 7),
            "named_metrics.estimated_wait_us": number / 8,
            "named_metrics.draining": 0.0,
            "named_metrics.estimated_run_us": 200.0,
        }
    )


class Repository:
    """What every worker serves."""

    def __init__(self, models: int) -> None:
        self.versions = {name: ["1"] for name in model_names(models)}
        self.reports = cycle([(orca.ORCA_HEADER, _report(number)) for number in range(_REPORTS)])
        self.render()

    def render(self) -> None:
        self.index = json.dumps(
            [
                {"name": name, "version": version, "state": "READY", "reason": "", "digest": digest(name, version)}
                for name, versions in self.versions.items()
                for version in versions
            ]
        ).encode()


class Worker:
    """The application of one listener."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.is_ready = True
        #: Answers that wait while it is silent; None: it is not.
        self.waiting: list[Callable[[], None]] | None = None

    def set_silent(self, is_silent: bool) -> None:
        waiting = self.waiting or ()
        self.waiting = [] if is_silent else None
        for answer in waiting:
            answer()

    def route(self, head: Head) -> Route:
        asks = head.get(orca.ORCA_FORMAT_HEADER) is not None
        path = head.target.partition(b"?")[0]
        if path == b"/v2/health/ready":
            return _Ready(self, asks)
        if path == b"/v2/repository/index":
            return _Index(self)
        parts = path.split(b"/")
        if path.startswith(b"/v2/models/") and path.endswith(b"/infer"):
            version = parts[5] if len(parts) == 7 else b"1"
            return _Infer(self, asks, parts[3].decode(), version.decode())
        return ErrorRoute(NotFound(f"no such path: {path.decode()}"))


class _Answer(Route):
    def __init__(self, worker: Worker, asks: bool = False) -> None:
        self.worker = worker
        self.asks = asks

    def handle(self, exchange: Exchange) -> None:
        if self.worker.waiting is None:
            self.answer(exchange)
        else:
            self.worker.waiting.append(lambda: self.answer(exchange))

    def answer(self, exchange: Exchange) -> None:
        raise NotImplementedError

    def headers(self) -> Headers:
        return (next(self.worker.repository.reports),) if self.asks else ()


class _Ready(_Answer):
    def answer(self, exchange: Exchange) -> None:
        exchange.respond(200 if self.worker.is_ready else 400, self.headers(), [b""])


class _Index(_Answer):
    def answer(self, exchange: Exchange) -> None:
        exchange.respond(200, _JSON, [self.worker.repository.index])


class _Infer(_Answer):
    def __init__(self, worker: Worker, asks: bool, model: str, version: str) -> None:
        super().__init__(worker, asks)
        output = {"name": "y", "datatype": "FP32", "shape": [1], "data": [0]}
        self._body = json.dumps({"model_name": model, "model_version": version, "outputs": [output]}).encode()

    def answer(self, exchange: Exchange) -> None:
        exchange.respond(200, (*_JSON, *self.headers()), [self._body])


async def serve(workers: int, models: int) -> None:
    repository = Repository(models)
    applications = [Worker(repository) for _ in range(workers)]
    listeners = [Listener(application) for application in applications]
    ports = [await listener.start("127.0.0.1", 0) for listener in listeners]
    print(json.dumps(ports), flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        change = json.loads(line)
        if "versions" in change:
            repository.versions.update(change["versions"])
            repository.render()
        if "silent" in change:
            silent = set(change["silent"])
            for number, application in enumerate(applications):
                if (application.waiting is not None) != (number in silent):
                    application.set_silent(number in silent)
        if "ready" in change:
            ready = set(change["ready"])
            for number, application in enumerate(applications):
                application.is_ready = number in ready
        print("{}", flush=True)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
