"""A server reached over HTTP, with binary tensors. See ``target``."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from isochrone.cli.requests.target import (
    NO_CREDENTIAL,
    Answer,
    Certificates,
    Question,
    RequestFailed,
    TensorDescription,
    no_tls,
    unreachable,
    untrusted,
)
from isochrone.client.scheme_hints import asks_for_tls, hint_of_tls
from isochrone.clock import MILLISECOND, now_ns
from isochrone.errors import IsochroneError
from isochrone.protocol.headers.timing import parse_server_timing
from isochrone.protocol.tensors.binary import from_binary, to_binary
from isochrone.protocol.tensors.json_values import from_json

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors


class HttpTarget:
    """One keep-alive connection. ``certificates``: over TLS; ``credential``: headers of every request."""

    def __init__(
        self,
        host: str,
        port: int,
        patience: float,
        certificates: Certificates | None = None,
        credential: Mapping[str, str] = NO_CREDENTIAL,
    ) -> None:
        self._credential = credential
        self._is_answered = False
        self._url = f"{'http' if certificates is None else 'https'}://{host}:{port}"
        self._connection = (
            http.client.HTTPConnection(host, port, timeout=patience)
            if certificates is None
            else http.client.HTTPSConnection(host, port, timeout=patience, context=certificates.context())
        )
        try:
            self._connection.connect()
        except ssl.SSLCertVerificationError as error:
            raise untrusted(self._url, error.verify_message) from None
        except ssl.SSLError as error:
            raise no_tls(self._url, error.reason or str(error)) from None
        except OSError as error:
            reason = error.strerror or str(error)
            if certificates is not None and isinstance(error, ConnectionResetError | BrokenPipeError):
                raise no_tls(self._url, reason) from None
            raise unreachable(self._url, reason) from None
        # Head and body leave in two writes; without this the second waits for an acknowledgement.
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._connection.close()

    def inputs(self, model: str, version: str) -> list[TensorDescription]:
        metadata = self._json("GET", _path(model, version))
        try:
            return [
                TensorDescription(each["name"], each["datatype"], tuple(int(size) for size in each["shape"]))
                for each in metadata["inputs"]
            ]
        except (KeyError, TypeError, ValueError):
            raise RequestFailed(f"{self._url} gave metadata of '{model}' that has no readable inputs") from None

    def model_names(self) -> list[str]:
        index = self._json("POST", "/v2/repository/index")
        rows = [row for row in index if isinstance(row, dict)] if isinstance(index, list) else []
        return sorted({str(row["name"]) for row in rows if "name" in row and row.get("state") == "READY"})

    def infer(self, question: Question) -> Answer:
        inputs, blobs = [], []
        for name, (datatype, array) in question.inputs.items():
            blob = to_binary(array, datatype)
            blobs.append(bytes(blob))
            described = {"name": name, "datatype": datatype, "shape": list(array.shape)}
            inputs.append({**described, "parameters": {"binary_data_size": len(blob)}})
        request: dict[str, Any] = {"inputs": inputs, "parameters": {**question.parameters, "binary_data_output": True}}
        if question.outputs:
            request["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in question.outputs]
        head = json.dumps(request).encode()
        headers = {"Inference-Header-Content-Length": str(len(head)), "x-isochrone-timing": "1"}
        if question.timeout_ms is not None:
            headers["x-request-timeout-ms"] = f"{question.timeout_ms:g}"
        path = _path(question.model, question.version) + "/infer"
        body = b"".join([head, *blobs])
        before = now_ns()
        given, content = self._exchange("POST", path, body, headers)
        total_ms = (now_ns() - before) / MILLISECOND
        version, outputs = self._read(given, content)
        return Answer(version, outputs, parse_server_timing(given.get("server-timing", "")), total_ms)

    def _read(self, headers: Mapping[str, str], content: bytes) -> tuple[str, Tensors]:
        try:
            position = int(headers.get("inference-header-content-length", len(content)))
            message = json.loads(content[:position])
            outputs: Tensors = {}
            for each in message["outputs"]:
                name, datatype, shape = each["name"], each["datatype"], each["shape"]
                size = each.get("parameters", {}).get("binary_data_size")
                if size is None:
                    outputs[name] = from_json(name, datatype, shape, each["data"])
                else:
                    outputs[name] = from_binary(name, datatype, shape, content[position : position + size])
                    position += size
            return str(message.get("model_version", "")), outputs
        except (KeyError, TypeError, ValueError, IsochroneError) as error:
            raise RequestFailed(f"{self._url} gave an answer that cannot be read: {error}") from None

    def _json(self, method: str, path: str) -> Any:
        _, content = self._exchange(method, path, b"", {})
        try:
            return json.loads(content)
        except ValueError:
            raise RequestFailed(f"{self._url}{path} gave no JSON; is it an Open Inference Protocol server?") from None

    def _exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[dict[str, str], bytes]:
        """(headers by lower-case name, body) of a 200; anything else is raised."""
        try:
            self._connection.request(method, path, body, {**headers, **self._credential})
            response = self._connection.getresponse()
            content = response.read()
        except TimeoutError:
            raise RequestFailed(f"{self._url}{path} gave no answer in {self._connection.timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            if isinstance(self._connection, http.client.HTTPSConnection):
                # With TLS 1.3 a server that misses the client's certificate ends the connection only now.
                raise no_tls(self._url, reason) from None
            if type(error) is http.client.BadStatusLine:
                # Perhaps an alert of TLS, whose bytes say nothing to people.
                reason = "what it answers is not HTTP"
            raise unreachable(self._url, reason, "" if self._is_answered else hint_of_tls(self._url)) from None
        self._is_answered = True
        if response.status != 200:
            raise self._refusal(response.status, path, content)
        return {name.lower(): value for name, value in response.getheaders()}, content

    def _refusal(self, status: int, path: str, content: bytes) -> RequestFailed:
        try:
            said = str(json.loads(content)["error"])
        except (ValueError, KeyError, TypeError):
            said = f"{self._url}{path} answered {status} without an explanation"
            if asks_for_tls(content):
                return RequestFailed(f"{said}{hint_of_tls(self._url)}")
            return RequestFailed(f"{said}; is it an Open Inference Protocol server?")
        return RequestFailed(f"{said} (HTTP {status})", unknown_model=status == 404 and "unknown model" in said)


def _path(model: str, version: str) -> str:
    versions = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(model, safe='')}{versions}"
