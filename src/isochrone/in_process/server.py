"""The caller's handle on a worker of its own process."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from isochrone.in_process.worker_thread import WorkerThread

if TYPE_CHECKING:
    from isochrone.client.client import Client


class Server:
    """A running server; ``isochrone.serve(model, block=False)`` returns one. Use it with ``with``, or ``stop`` it::

    with isochrone.serve(double, inputs={"x": "FP32[3]"}, block=False) as server:
        answer = server.client().infer("double", {"x": [1, 2, 3]})
    """

    def __init__(self, host: str, names: tuple[str, ...]) -> None:
        #: The names of the models.
        self.models = names
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self._host = f"[{host}]" if ":" in host else host
        self._ports: dict[str, int] = {}
        self._thread: WorkerThread | None = None
        self._client: Client | None = None

    @property
    def http_url(self) -> str:
        """As in ``http://127.0.0.1:8000``."""
        return f"http://{self._host}:{self._ports['http']}"

    @property
    def grpc_url(self) -> str:
        """As in ``grpc://127.0.0.1:8001``."""
        return f"grpc://{self._host}:{self._ports['grpc']}"

    @property
    def metrics_url(self) -> str:
        """As in ``http://127.0.0.1:8002/metrics``."""
        return f"http://{self._host}:{self._ports['metrics']}/metrics"

    @property
    def is_running(self) -> bool:
        return self._thread is not None and not self._thread.ended.is_set()

    def client(self) -> Client:
        """A client of this server, over HTTP: the same one until it is closed. It is closed with the server."""
        from isochrone.client.client import Client

        if self._client is None or self._client.is_closed:
            self._client = Client(self.http_url, token="")
        return self._client

    def stop(self) -> None:
        """Finish the requests in flight, free the models and the ports. May be called again."""
        if self._client is not None:
            self._client.close()
        if self._thread is not None:
            self._thread.stop()

    def attach(self, thread: WorkerThread) -> None:
        self._thread = thread

    def ready(self, ports: Mapping[str, int]) -> None:
        self._ports.update(ports)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        names = ", ".join(self.models)
        return (
            f"<isochrone.Server of {names} at {self.http_url}>" if self.is_running else f"<stopped Server of {names}>"
        )
