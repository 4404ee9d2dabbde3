"""Offered protocols as a real client writes them, and what any damage to its message leads to."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.wire.tls.client_hello import offered_protocols

_NAMES = st.lists(st.text("abch2/1.", min_size=1, max_size=12), max_size=5)


def hello_of(names: list[str]) -> bytes:
    """The first message of Python's own client, without the header of its record."""
    context = ssl.create_default_context()
    if names:
        context.set_alpn_protocols(names)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()[5:]


@given(_NAMES)
def test_names_are_read_as_a_client_writes_them(names: list[str]) -> None:
    offered = offered_protocols(hello_of(names))
    assert offered == (tuple(name.encode() for name in names) or None)


def test_a_client_without_extensions_offers_nothing() -> None:
    body = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    assert offered_protocols(b"\x01" + len(body).to_bytes(3, "big") + body) is None


@given(st.data())
def test_a_damaged_message_is_read_or_refused(data: st.DataObject) -> None:
    hello = bytearray(hello_of(["h2", "http/1.1"]))
    position = data.draw(st.integers(0, len(hello) - 1))
    hello[position] = data.draw(st.integers(0, 255))
    del hello[data.draw(st.integers(0, len(hello))) :]
    try:
        offered = offered_protocols(bytes(hello))
    except ValueError:
        return
    assert offered is None or all(isinstance(name, bytes) and name for name in offered)


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        offered_protocols(data)
    except ValueError:
        return
    raise AssertionError("random bytes of this length are no message")


@pytest.mark.parametrize("extension", [b"\x00\x00", b"\x00\x01\x00", b"\x00\x03\x02h2\x00", b"\x00\x02\x05h"])
def test_an_extension_without_whole_names_is_refused(extension: bytes) -> None:
    extensions = b"\x00\x10" + len(extension).to_bytes(2, "big") + extension
    body = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    body += len(extensions).to_bytes(2, "big") + extensions
    with pytest.raises(ValueError, match=r"name|longer"):
        offered_protocols(b"\x01" + len(body).to_bytes(3, "big") + body)
