"""Which pages may use a server from a browser: those it serves itself, and those it was told of."""

from __future__ import annotations

from typing import Any

import pytest

from isochrone.errors import ConfigError
from isochrone.protocol.access.origins import is_allowed, read_origins
from isochrone.protocol.applications.application import SameOrigin
from isochrone.protocol.rest.answers import ErrorRoute
from isochrone.wire.exchange import Exchange, Head, Route


class _Served(Route):
    def handle(self, exchange: Exchange) -> None: ...


class _Application:
    def __init__(self) -> None:
        self.routed: list[Head] = []

    def route(self, head: Head) -> Route:
        self.routed.append(head)
        return _Served()


def head_of(origin: bytes | None, host: bytes = b"10.0.0.1:8000", *more: tuple[bytes, bytes]) -> Head:
    origins = () if origin is None else ((b"origin", origin),)
    return Head(b"POST", b"/v2/repository/models/x/load", ((b"host", host), *origins, *more))


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (b"http://10.0.0.1:8000", b"10.0.0.1:8000"),
        (b"http://worker", b"worker"),
        (b"http://worker", b"worker:80"),
        (b"https://worker:443", b"worker"),
        (b"http://WORKER:8000", b"worker:8000"),
        (b"http://[::1]:8000", b"[::1]:8000"),
    ],
)
def test_a_page_of_the_server_itself(origin: bytes, host: bytes) -> None:
    assert is_allowed(origin, host, ())


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (b"http://evil.example", b"10.0.0.1:8000"),
        # A name that was made to lead here.
        (b"http://evil.example:8000", b"evil.example:8000"),
        (b"http://10.0.0.1:8001", b"10.0.0.1:8000"),
        (b"http://10.0.0.1", b"10.0.0.1:8000"),
        (b"https://worker", b"worker:80"),
        (b"null", b"10.0.0.1:8000"),
        (b"null", b""),
        (b"", b""),
        (b"http://", b""),
        (b"file://", b""),
        (b"http://a:99999", b"a:99999"),
        (b"http://[::1", b"[::1"),
        (b"http://10.0.0.1:8000.evil.example", b"10.0.0.1:8000"),
        (b"http://10.0.0.1:8000@evil.example", b"10.0.0.1:8000"),
        (b"\xff\xfe", b"\xff\xfe"),
    ],
)
def test_a_page_of_another_site(origin: bytes, host: bytes) -> None:
    assert not is_allowed(origin, host, ())
    application = _Application()
    assert isinstance(SameOrigin(application).route(head_of(origin, host)), ErrorRoute)
    assert not application.routed


@pytest.mark.parametrize("kind", [b"text/plain", b"application/x-www-form-urlencoded", b"application/json"])
def test_the_content_type_does_not_matter(kind: bytes) -> None:
    head = head_of(b"http://evil.example", b"10.0.0.1:8000", (b"content-type", kind))
    assert isinstance(SameOrigin(_Application()).route(head), ErrorRoute)


def test_clients_that_are_no_browsers_pass() -> None:
    application = _Application()
    assert isinstance(SameOrigin(application).route(head_of(None)), _Served)


def test_http2_names_the_host_otherwise() -> None:
    head = Head(b"POST", b"/v2", ((b"origin", b"https://worker:8000"),))
    head.is_http2, head.authority = True, b"worker:8000"
    assert isinstance(SameOrigin(_Application()).route(head), _Served)
    head.authority = b"other:8000"
    assert isinstance(SameOrigin(_Application()).route(head), ErrorRoute)


def test_allowed_origins() -> None:
    allowed = read_origins(["https://Console.example/", "http://localhost:3000", "http://plain:80"])
    assert allowed == ("https://console.example", "http://localhost:3000", "http://plain")
    for origin in (b"https://console.example", b"http://localhost:3000", b"http://plain"):
        assert is_allowed(origin, b"10.0.0.1:8000", allowed)
    assert not is_allowed(b"http://console.example", b"10.0.0.1:8000", allowed)


@pytest.mark.parametrize("given", ["*", "console.example", "ftp://x", "http://x/path", "http://x?y", "http://x:99999"])
def test_what_is_no_origin(given: Any) -> None:
    with pytest.raises(ConfigError, match="--allow-origin"):
        read_origins([given])
