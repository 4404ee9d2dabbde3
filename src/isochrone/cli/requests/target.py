"""A server to ask, whichever transport reaches it: what ``isochrone infer`` needs of one, and the choice between them.

Not the data path: one request at a time, blocking. ``http_target`` and ``grpc_target`` do the asking; both raise
``RequestFailed`` with a sentence for a person, and nothing else, for whatever a server or the network does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors

#: Seconds to wait for an answer when the request names no deadline.
PATIENCE = 60.0


class RequestFailed(Exception):
    """The sentence says what happened and, where it can, what to change."""

    def __init__(self, message: str, *, unknown_model: bool = False) -> None:
        super().__init__(message)
        self.unknown_model = unknown_model


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """An input as the model's metadata tells it; -1 is a dimension of any size, the batch's included."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """One request."""

    model: str
    version: str
    inputs: Mapping[str, tuple[str, Tensor]]
    """Name to (datatype, array)."""
    outputs: tuple[str, ...]
    """Empty: all."""
    parameters: Mapping[str, Any]
    timeout_ms: float | None


@dataclass(frozen=True, slots=True)
class Answer:
    version: str
    outputs: Tensors
    #: Stage to milliseconds, as the server tells them; empty where it does not.
    stages: Mapping[str, float]
    #: From the first byte sent to the whole answer read.
    total_ms: float


class Target(Protocol):
    def inputs(self, model: str, version: str) -> list[TensorDescription]: ...

    def model_names(self) -> list[str]: ...

    def infer(self, question: Question) -> Answer: ...

    def close(self) -> None: ...


def open_target(url: str, timeout_ms: float | None) -> Target:
    """The target a URL names: ``http://host:port`` or ``grpc://host:port``."""
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise RequestFailed(f"--url: expected http://HOST:PORT or grpc://HOST:PORT, given '{url}'") from None
    if parts.scheme not in ("http", "grpc") or not host or parts.path not in ("", "/"):
        raise RequestFailed(f"--url: expected http://HOST:PORT or grpc://HOST:PORT, given '{url}'")
    # A deadline is the server's to keep; the margin lets its answer arrive.
    patience = PATIENCE if timeout_ms is None else timeout_ms / 1000 + 5.0
    # Imported here: gRPC's library takes a third of a second that an HTTP call need not pay.
    if parts.scheme == "grpc":
        from isochrone.cli.requests.grpc_target import GrpcTarget

        return GrpcTarget(host, port or 8001, patience)
    from isochrone.cli.requests.http_target import HttpTarget

    return HttpTarget(host, port or 8000, patience)


def unreachable(url: str, reason: str) -> RequestFailed:
    return RequestFailed(
        f"no server answers at {url} ({reason}); start a fleet with 'isochrone up' or a worker with "
        "'isochrone serve MODELS', or name another with --url"
    )
