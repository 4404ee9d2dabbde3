"""The interface of a server that ``isochrone infer`` sends requests to, the same for HTTP and gRPC.

Not the data path: one request at a time, blocking. ``http_target`` and ``grpc_target`` implement it; both raise
``RequestFailed`` with a sentence for the user, and nothing else, for any failure of the server or the network.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from isochrone.wire.tls.contexts import client_context

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors

#: Of a user without ISOCHRONE_API_TOKEN.
NO_CREDENTIAL: Mapping[str, str] = {}


class RequestFailed(Exception):
    """A failed request; the message says what happened and, if possible, what to change."""

    def __init__(self, message: str, *, unknown_model: bool = False) -> None:
        super().__init__(message)
        self.unknown_model = unknown_model


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """An input as the model's metadata describes it; -1 is a dimension of any size, including the batch's."""

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
    #: Stage to milliseconds, as the server reports them; empty if it does not.
    stages: Mapping[str, float]
    #: From the first byte sent to the whole answer read.
    total_ms: float


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files for a server behind TLS."""

    #: Whom to trust in place of the system's authorities.
    ca: Path | None = None
    #: What to show to a server that asks for a client certificate, and its key.
    cert: Path | None = None
    key: Path | None = None

    def check(self, is_secure: bool) -> None:
        flags = {"--ca": self.ca, "--cert": self.cert, "--key": self.key}
        given = {flag: path for flag, path in flags.items() if path is not None}
        if given and not is_secure:
            raise RequestFailed(f"{next(iter(given))} needs TLS: expected --url https://… or grpcs://…")
        if (self.cert is None) != (self.key is None):
            raise RequestFailed("--cert and --key go together")
        for flag, path in given.items():
            if not path.is_file():
                raise RequestFailed(f"{flag}: expected a PEM file, given '{path}', which is not there")

    def context(self) -> ssl.SSLContext:
        try:
            context = client_context(self.ca)
        except (OSError, ssl.SSLError) as error:
            raise RequestFailed(f"--ca: expected a PEM certificate in {self.ca}, given: {error}") from None
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key)
            except (OSError, ssl.SSLError) as error:
                given = f"{self.cert} and {self.key}: {error}"
                raise RequestFailed(f"--cert, --key: expected a PEM certificate and its key, given {given}") from None
        return context


class Target(Protocol):
    def inputs(self, model: str, version: str) -> list[TensorDescription]: ...

    def model_names(self) -> list[str]:
        """Of the models that are ready."""
        ...

    def infer(self, question: Question) -> Answer: ...

    def close(self) -> None: ...


def no_tls(url: str, reason: str) -> RequestFailed:
    plain = url.partition("://")[0].removesuffix("s")
    return RequestFailed(
        f"no TLS connection to {url} ({reason}); use {plain}:// for a server without TLS, and --cert and --key for one "
        "that asks for client certificates"
    )


def untrusted(url: str, reason: str) -> RequestFailed:
    return RequestFailed(f"{url} shows a certificate that is not trusted ({reason}); name its authority with --ca")


class Unreachable(RequestFailed):
    """No server listens there."""


def unreachable(url: str, reason: str, hint: str = "") -> RequestFailed:
    """``hint``: what else to try, as ``scheme_hints`` has it."""
    return Unreachable(
        f"no server answers at {url} ({reason}){hint}; {'else ' if hint else ''}start a fleet with 'isochrone up' or a "
        "worker with 'isochrone serve MODELS', or name another with --url"
    )
