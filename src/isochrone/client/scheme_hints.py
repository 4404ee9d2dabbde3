"""Hints for a URL whose scheme does not fit its port: plain to one that speaks TLS, TLS to one that does not. Pure."""

from __future__ import annotations

from typing import Final

#: How a record of TLS begins that is an alert (RFC 8446, 5.1): a type, and a version that is 3.x.
_ALERT: Final = b"\x15\x03"
#: What servers answer to plain HTTP on a port for TLS: nginx and Apache, Go, HAProxy and Envoy.
_PLAIN_TO_TLS: Final = (b"HTTPS port", b"HTTPS server", b"HTTPS-enabled", b"SSL-enabled")
#: The library's reasons for a first record that is none of TLS, and for a connection that ends there.
_NO_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
    "UNEXPECTED_EOF_WHILE_READING",
    "HTTP_REQUEST",
)
#: What gRPC's library says of a connection that was accepted and ended before it was one of HTTP/2.
_CUT: Final = ("Socket closed", "Connection reset", "Broken pipe")


def is_tls_alert(received: bytes) -> bool:
    return received.startswith(_ALERT)


def asks_for_tls(body: bytes | memoryview) -> bool:
    """Whether a server's refusal of a plain request says that the port is one for TLS."""
    beginning = bytes(body[:1000])
    return any(words in beginning for words in _PLAIN_TO_TLS)


def is_cut(reason: str) -> bool:
    """Whether gRPC's library says that the server accepted the connection and closed it."""
    return any(words in reason for words in _CUT)


def hint_of_tls(url: str) -> str:
    """For a plain URL whose server ended the connection without an answer. "": it is not plain."""
    scheme, _, rest = url.partition("://")
    return "" if scheme.endswith("s") else f"; if the port speaks TLS, use {scheme}s://{rest.partition('/')[0]}"


def hint_of_plain(url: str, reason: str) -> str:
    """For a URL with TLS whose server did not answer the handshake. "": the reason is another."""
    scheme, _, rest = url.partition("://")
    if not scheme.endswith("s") or not any(words in reason for words in _NO_TLS):
        return ""
    return f"; if the port does not speak TLS, use {scheme[:-1]}://{rest.partition('/')[0]}"
