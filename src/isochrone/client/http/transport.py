"""HTTP for the blocking client: a pool of kept connections that threads share."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from isochrone.client.address import Address, Certificates
from isochrone.client.answers import ModelMetadata, Outputs
from isochrone.client.calls import NO_HEADERS, InferCall
from isochrone.client.http import codec
from isochrone.client.http.connection import Answer, HttpConnection
from isochrone.client.http.failures import http_failure
from isochrone.client.http.requests import LIMITS, REFUSED, request_head, stream_unsupported
from isochrone.errors import Unavailable
from isochrone.wire.http1.response_heads import ResponseHeads


class HttpTransport:
    """Connections to one server: one for each request that is under way at the same time."""

    def __init__(self, address: Address, certificates: Certificates) -> None:
        self._address = address
        self._tls = certificates.context() if address.is_secure else None
        self._idle: deque[HttpConnection] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._heads = ResponseHeads(LIMITS)

    def infer(self, call: InferCall, seconds: float | None) -> Outputs:
        body, json_length = codec.encode_infer(call)
        path = codec.model_path(call.model, call.version, "/infer")
        headers = codec.infer_headers(call, json_length, seconds)
        answer = self._exchange("POST", path, headers, body, seconds)
        if answer.status != 200:
            raise http_failure(answer.status, answer.headers, answer.body, f"{self._address}{path}", call.id)
        return codec.decode_infer(answer.headers, answer.body, str(self._address))

    def stream(self, call: InferCall, seconds: float | None) -> Iterator[Outputs]:
        raise stream_unsupported(self._address)

    def is_ready(
        self, model: str, version: str, seconds: float | None, headers: Mapping[str, str] = NO_HEADERS
    ) -> bool:
        path = codec.model_path(model, version, "/ready") if model else "/v2/health/ready"
        answer = self._exchange("GET", path, headers, (), seconds)
        if answer.status in REFUSED:
            raise http_failure(answer.status, answer.headers, answer.body, f"{self._address}{path}")
        return answer.status == 200

    def metadata(self, model: str, version: str, seconds: float | None, headers: Mapping[str, str]) -> ModelMetadata:
        path = codec.model_path(model, version)
        answer = self._exchange("GET", path, headers, (), seconds)
        if answer.status != 200:
            raise http_failure(answer.status, answer.headers, answer.body, f"{self._address}{path}")
        return codec.decode_metadata(answer.body, str(self._address))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, deque()
        for connection in idle:
            connection.close()

    def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Sequence[bytes | memoryview],
        seconds: float | None,
    ) -> Answer:
        ends = None if seconds is None else time.monotonic() + seconds
        head = request_head(method, path, self._address, headers, sum(map(len, body)))
        connection = self._take(seconds)
        try:
            answer = connection.exchange(head, body, ends)
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return answer

    def _take(self, seconds: float | None) -> HttpConnection:
        if self._closed:
            raise Unavailable("the client is closed")
        while True:
            try:
                # The one that was used last: those that a burst needed grow old and are found closed.
                connection = self._idle.pop()
            except IndexError:
                return HttpConnection(self._address, self._tls, self._heads, seconds)
            if connection.is_open():
                return connection
            connection.close()

    def _give_back(self, connection: HttpConnection) -> None:
        if connection.is_reusable:
            with self._lock:
                if not self._closed:
                    self._idle.append(connection)
                    return
        connection.close()
