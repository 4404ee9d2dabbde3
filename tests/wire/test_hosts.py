"""A Host that HTTP/2 does not allow as an authority is refused over HTTP/1.1, too."""

from __future__ import annotations

import pytest

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.hosts import is_malformed_host
from isochrone.wire.http1.request_heads import HeadRejected, RequestHeads
from isochrone.wire.http2.fields import request_head

PSEUDO = ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/v2"))


@pytest.mark.parametrize("host", [b"a b", b"a\tb", b"a\x7f", b"a\0", b"a\r\nb: c"])
def test_refused_in_both_versions(host: bytes) -> None:
    assert is_malformed_host(host)
    assert request_head((*PSEUDO, (b":authority", host))) is None
    assert request_head((*PSEUDO, (b":authority", b"x"), (b"host", host))) is None
    if b"\r" not in host:
        with pytest.raises(HeadRejected) as caught:
            RequestHeads(WireLimits()).parse(b"GET /v2 HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        assert caught.value.status == 400


@pytest.mark.parametrize("host", [b"", b"x", b"x:80", b"[::1]:80", b"user@x", b"a/b", "ä".encode()])
def test_accepted_in_both_versions(host: bytes) -> None:
    assert request_head((*PSEUDO, (b":authority", host))) is not None
    assert request_head((*PSEUDO, (b"host", host))) is not None
    assert RequestHeads(WireLimits()).parse(b"GET /v2 HTTP/1.1\r\nHost: " + host + b"\r\n\r\n").get(b"host") == host
