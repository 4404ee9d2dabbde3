"""TLS contexts: both ends in memory agree on a protocol by ALPN, certificates are asked for, errors name the file."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from isochrone.errors import ConfigError
from isochrone.wire.tls import client_context, server_context

CERTIFICATES = Path(__file__).parent / "certificates"
CERTIFICATE, KEY = CERTIFICATES / "localhost.pem", CERTIFICATES / "localhost.key"


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str = "localhost") -> tuple[ssl.SSLObject, ...]:
    """Carries bytes between two ends until both are done; raises what either raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            break
    assert not waiting
    return tuple(ends)


@pytest.mark.parametrize(("http2", "protocol"), [(True, "h2"), (False, "http/1.1")])
def test_alpn_chooses_what_the_client_offers(http2: bool, protocol: str) -> None:
    client, server = handshake(client_context(CERTIFICATE, http2=http2), server_context(CERTIFICATE, KEY))
    assert client.selected_alpn_protocol() == protocol
    assert server.selected_alpn_protocol() == protocol
    assert client.version() in ("TLSv1.2", "TLSv1.3")


def test_a_client_without_alpn_is_taken() -> None:
    context = ssl.create_default_context(cafile=str(CERTIFICATE))
    _, server = handshake(context, server_context(CERTIFICATE, KEY))
    assert server.selected_alpn_protocol() is None


def test_a_client_refuses_another_name_and_an_unknown_signer() -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client_context(CERTIFICATE), server_context(CERTIFICATE, KEY), "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client_context(), server_context(CERTIFICATE, KEY))


def test_client_certificates_are_asked_for_with_a_client_ca() -> None:
    server = server_context(CERTIFICATE, KEY, client_ca=CERTIFICATE)
    assert server.verify_mode is ssl.CERT_REQUIRED
    client = client_context(CERTIFICATE)
    client.load_cert_chain(CERTIFICATE, KEY)
    _, end = handshake(client, server)
    assert end.getpeercert()
    bare = client_context(CERTIFICATE)
    bare.maximum_version = ssl.TLSVersion.TLSv1_2  # 1.3 tells the client only after its handshake
    with pytest.raises(ssl.SSLError):
        handshake(bare, server)


def test_old_versions_are_not_spoken() -> None:
    assert server_context(CERTIFICATE, KEY).minimum_version is ssl.TLSVersion.TLSv1_2


def test_errors_name_the_file(tmp_path: Path) -> None:
    absent = tmp_path / "absent.pem"
    with pytest.raises(ConfigError, match="absent"):
        server_context(absent, KEY)
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    with pytest.raises(ConfigError, match="garbage"):
        server_context(CERTIFICATE, KEY, client_ca=garbage)
