"""The same call to two servers, in raw bytes, and what clients may rely on in the answers.

REST requests are written by hand and gRPC messages go as bytes, as C++ clients send them: nothing of tritonclient
stands between a test and the wire unless the test says so.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

#: Calls compared with real Triton so far, by group; conftest prints it.
COMPARED: Counter[str] = Counter()

#: Triton puts this before many messages.
_REQUEST_ID = re.compile(r"\[request id: [^]]*\] ")


@dataclass(frozen=True)
class Server:
    """host:port of both protocols."""

    name: str
    http: str
    grpc: str


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "")

    @property
    def value(self) -> Any:
        return json.loads(self.body) if self.body else None

    @property
    def error(self) -> str:
        text = self.body.removeprefix(b"data: ")
        return _REQUEST_ID.sub("", str(json.loads(text)["error"]))


@dataclass(frozen=True)
class GrpcAnswer:
    code: str
    details: str
    message: bytes


def http(server: Server, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None) -> Any:
    """One request on a connection of its own, written byte by byte."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {server.http}", "Connection: close", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    host, _, port = server.http.partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        with connection.makefile("rb") as file:
            return _read(file, method)


def _read(file: Any, method: str) -> HttpAnswer:
    status = int(file.readline().split()[1])
    headers: dict[str, str] = {}
    while (line := file.readline().strip()) != b"":
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    if method == "HEAD":
        return HttpAnswer(status, headers, b"")
    if headers.get("transfer-encoding") == "chunked":
        return HttpAnswer(status, headers, _chunks(file))
    length = headers.get("content-length")
    return HttpAnswer(status, headers, file.read() if length is None else file.read(int(length)))


def _chunks(file: Any) -> bytes:
    body = b""
    while size := int(file.readline(), 16):
        body += file.read(size)
        file.readline()
    return body


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends, "it never came about"
        time.sleep(0.005)


def grpc_raw(server: Server, method: str, message: bytes, timeout: float = 30) -> GrpcAnswer:
    """One unary call of the inference service, bytes in and out."""
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}", bytes, bytes)
        try:
            return GrpcAnswer("OK", "", call(message, timeout=timeout))
        except grpc.RpcError as error:
            return GrpcAnswer(error.code().name, _REQUEST_ID.sub("", error.details() or ""), b"")


@dataclass(frozen=True)
class Pair:
    """Real Triton and one of ours: the worker, or the gateway before it."""

    theirs: Server
    ours: Server
    group: str

    @property
    def both(self) -> tuple[Server, Server]:
        return self.theirs, self.ours

    def http(self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None) -> Any:
        """Triton's answer, then ours."""
        COMPARED[self.group] += 1
        return tuple(http(server, method, path, body, headers) for server in self.both)

    def grpc(self, method: str, message: Any) -> Any:
        COMPARED[self.group] += 1
        data = message if isinstance(message, bytes) else message.SerializeToString()
        return tuple(grpc_raw(server, method, data) for server in self.both)

    def same_http(self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None) -> Any:
        """The same status, kind and body, to the byte; returns it."""
        theirs, ours = self.http(method, path, body, headers)
        assert (ours.status, ours.body) == (theirs.status, theirs.body), (theirs, ours)
        if theirs.body:
            assert ours.kind == theirs.kind
        header = "inference-header-content-length"
        assert ours.headers.get(header) == theirs.headers.get(header)
        return ours

    def same_grpc(self, method: str, message: Any) -> bytes:
        """The same message, to the byte; returns it."""
        theirs, ours = self.grpc(method, message)
        assert ours == theirs
        return bytes(ours.message)

    def http_error(
        self, words: str, call: tuple[Any, ...], status: int | None = None, theirs: int | None = None
    ) -> None:
        """Errors: Triton's words in both; the same status, or ours and theirs where docs/protocol.md says so."""
        their, our = self.http(*call)
        assert words in their.error, their
        assert words in our.error, our
        if status is None:
            assert our.status == their.status, (their, our)
        else:
            assert (our.status, their.status) == (status, theirs), (their, our)

    def grpc_error(self, words: str, method: str, message: Any, code: str = "", theirs: str = "") -> None:
        their, our = self.grpc(method, message)
        assert their.code != "OK"
        assert words in their.details
        assert words in our.details, our
        if not code:
            assert our.code == their.code, (their, our)
        else:
            assert (our.code, their.code) == (code, theirs), (their, our)
