"""Pseudo-headers that would split a message when it is forwarded over HTTP/1.1 are refused where they come in."""

import pytest

from isochrone.wire.exchange import Header
from isochrone.wire.http2.fields import request_head

GOOD: dict[bytes, bytes] = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": b"/v2/models/m/infer",
    b":authority": b"localhost:8000",
}


def fields(**changes: bytes) -> list[Header]:
    changed = {b":" + name.encode(): value for name, value in changes.items()}
    return list({**GOOD, **changed}.items())


def test_an_ordinary_request_is_taken() -> None:
    head = request_head(fields())
    assert head is not None
    assert (head.method, head.target) == (b"POST", b"/v2/models/m/infer")


@pytest.mark.parametrize("byte", [b"\r", b"\n", b"\0", b" ", b"\t", b"\x7f"])
@pytest.mark.parametrize("name", ["path", "authority", "method"])
def test_bytes_that_end_a_line_or_a_word(name: str, byte: bytes) -> None:
    value = GOOD[b":" + name.encode()]
    assert request_head(fields(**{name: value + byte + b"x"})) is None
    assert request_head(fields(**{name: value + byte})) is None


def test_a_second_request_inside_a_path() -> None:
    path = b"/v2/models/m/infer?x HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\nPOST /v2/repository/models/m/unload"
    assert request_head(fields(path=path)) is None


@pytest.mark.parametrize("method", [b"POST:", b"GET,", b"P/OST", b"1GET"])
def test_methods_that_are_none(method: bytes) -> None:
    assert request_head(fields(method=method)) is None


def test_a_colon_inside_a_name() -> None:
    assert request_head([*fields(), (b"host:evil", b"x")]) is None
