"""Addresses and certificates of clients, and errors by status."""

from __future__ import annotations

from pathlib import Path

import pytest

import isochrone
from isochrone.client.address import parse_address
from isochrone.client.grpc.failures import grpc_failure, stream_failure
from isochrone.client.http.failures import http_failure
from isochrone.errors import ConfigError, DeadlineExceeded, Internal, NotFound, QueueFull, Unavailable


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("localhost", "http://localhost:8000"),
        ("http://10.0.0.1:9000/", "http://10.0.0.1:9000"),
        ("grpc://localhost", "grpc://localhost:8001"),
        ("grpcs://[::1]:443", "grpcs://[::1]:443"),
        ("https://example.org:443", "https://example.org:443"),
    ],
)
def test_addresses(url: str, expected: str) -> None:
    address = parse_address(url)
    assert str(address) == expected
    assert address.is_grpc is expected.startswith("grpc")
    assert address.is_secure is expected.split(":")[0].endswith("s")


@pytest.mark.parametrize(
    "url", ["", "ftp://host:1", "http://", "host:port", "http://host/v2", "http://u@h:1", "h:99999"]
)
def test_a_wrong_address_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match=r"isochrone.Client: url: expected HOST:PORT, http://HOST:PORT"):
        isochrone.Client(url)


def test_certificates_are_for_tls_and_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="url: expected https:// or grpcs://, since ca is given"):
        isochrone.Client("localhost:8000", ca=tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match=r"ca: expected a PEM file, given '.*ca.pem', which is not there"):
        isochrone.Client("https://localhost:8000", ca=tmp_path / "ca.pem")
    (tmp_path / "wrong.pem").write_text("no certificate")
    for scheme in ("https", "grpcs"):
        with pytest.raises(ConfigError, match="ca, cert, key: expected PEM files"):
            isochrone.Client(f"{scheme}://localhost:8000", ca=tmp_path / "wrong.pem")
        with pytest.raises(ConfigError, match="cert, key: expected both or none, given cert"):
            isochrone.Client(f"{scheme}://localhost:8000", cert=tmp_path / "wrong.pem")


def test_errors_over_http() -> None:
    error = http_failure(429, {"x-isochrone-unprocessed": "1", "retry-after": "2"}, b'{"error": "full"}', "place", "id")
    assert isinstance(error, QueueFull)
    assert (str(error), error.status, error.request_id, error.retry_after) == ("full", "HTTP 429", "id", 2)
    assert error.unprocessed
    silent = http_failure(500, {"retry-after": "Mon, 16 Nov 2026 20:00:00 GMT"}, b"<html>", "http://h:1/v2")
    assert isinstance(silent, Internal)
    assert str(silent) == "http://h:1/v2 answered HTTP 500 without an explanation"
    assert (silent.unprocessed, silent.retry_after) == (False, 0)


def test_errors_over_grpc() -> None:
    error = grpc_failure("UNAVAILABLE", "stopping", {"x-isochrone-unprocessed": "1"}, "place", "id")
    assert isinstance(error, Unavailable)
    assert (str(error), error.status, error.unprocessed) == ("stopping", "gRPC UNAVAILABLE", True)
    assert not grpc_failure("UNAVAILABLE", "Socket closed", {}, "place").unprocessed
    never = grpc_failure("UNAVAILABLE", "failed to connect to all addresses; last error: refused", {}, "grpc://h:1")
    assert (str(never), never.unprocessed) == ("cannot connect to grpc://h:1: refused", True)
    assert isinstance(grpc_failure("UNKNOWN", "", {}, "place"), Internal)


def test_errors_in_a_stream_have_only_their_text() -> None:
    assert isinstance(stream_failure("Request for unknown model: 'x' is not found", ""), NotFound)
    assert isinstance(stream_failure("Request timeout expired: model 'x'", ""), DeadlineExceeded)
    assert type(stream_failure("model 'x': infer raised", "a")) is Internal
