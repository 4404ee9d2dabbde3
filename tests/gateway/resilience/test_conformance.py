"""Answers that are the protocol's and answers that are not, by their heads and first bytes."""

from __future__ import annotations

import pytest

from isochrone.gateway.resilience.conformance import foreign_http
from isochrone.wire.exchange import Headers

JSON = ((b"content-type", b"application/json"),)
BINARY = ((b"content-type", b"application/octet-stream"), (b"inference-header-content-length", b"40"))
HTML = ((b"content-type", b"text/html; charset=utf-8"),)
PLAIN = ((b"content-type", b"text/plain"),)
RESULT = b'{"model_name":"m","outputs":[]}'


@pytest.mark.parametrize(
    ("status", "headers", "body", "is_inference"),
    [
        (200, JSON, [RESULT], True),
        (200, (), [RESULT], True),
        (200, ((b"content-type", b"application/json; charset=utf-8"),), [memoryview(RESULT)], True),
        (200, JSON, [b'{"id":"' + b"x" * 600 + b'",', b'"model_name":"m","outputs":[]}'], True),
        (200, JSON, [b'{"outputs":[],', b'"model_', b'name":"m"}'], True),
        # So far: the model's name is still to come.
        (200, JSON, [b'{"outputs":[{"data":[', b"1," * 40_000], True),
        (200, JSON, [b'{"id":"' + b"x" * 60_000 + b'",', b'"model_name":"m","outputs":[', b"1," * 40_000], True),
        (200, BINARY, [b"\0" * 100], True),
        (200, (*JSON, (b"content-encoding", b"gzip")), [b"\x1f\x8b"], True),
        (200, JSON, [b'{"name":"m"}'], False),
        (200, ((b"content-type", b"text/event-stream"),), [b"data: {}"], False),
        (400, JSON, [b'{"error":"shape"}'], True),
        (404, (), [], True),
        (404, PLAIN, [b'{"error":"Request for unknown model"}'], True),
    ],
)
def test_the_protocols_own(status: int, headers: Headers, body: list[bytes], is_inference: bool) -> None:
    assert foreign_http(status, headers, body, is_inference) == ""


@pytest.mark.parametrize(
    ("status", "headers", "body", "is_inference", "reason"),
    [
        (200, HTML, [b"<html>"], True, "content-type text/html"),
        (200, HTML, [b"<html>"], False, "content-type text/html"),
        (501, HTML, [b"<html>"], True, "content-type text/html"),
        (404, PLAIN, [b"404 page not found"], True, "content-type text/plain"),
        (200, PLAIN, [b'{"error":""}'], True, "content-type text/plain"),
        (200, JSON, [b'{"status":"ok"}'], True, "without model_name"),
        (200, JSON, [b'["model_name"]'], True, "without model_name"),
        (200, JSON, [], True, "without model_name"),
        (200, JSON, [b'{"outputs":[]}'], True, "without model_name"),
        (200, JSON, [b'{"items":[', b"1," * 40_000, b'],"outputs":[]}'], True, "without model_name"),
        (200, (), [b"hello"], True, "without model_name"),
        (200, BINARY[:1], [b"\0" * 100], True, "inference-header-content-length"),
    ],
)
def test_anothers(status: int, headers: Headers, body: list[bytes], is_inference: bool, reason: str) -> None:
    assert reason in foreign_http(status, headers, body, is_inference)
