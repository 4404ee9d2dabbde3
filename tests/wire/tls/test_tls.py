"""TLS contexts: both ends in memory agree on a protocol by ALPN, certificates are asked for, errors name the file."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from isochrone.errors import ConfigError
from isochrone.secure.certificates.authority import Authority
from isochrone.secure.certificates.minting import Leaf
from isochrone.secure.certificates.subject_names import read_names
from isochrone.wire.tls.contexts import client_context, peer_identity, server_context
from tls_ends import handshake

CERTIFICATES = Path(__file__).parents[1] / "certificates"
CERTIFICATE, KEY = CERTIFICATES / "localhost.pem", CERTIFICATES / "localhost.key"


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
    client = client_context(CERTIFICATE)
    client.load_cert_chain(CERTIFICATE, KEY)
    _, end = handshake(client, server)
    assert end.getpeercert()
    bare = client_context(CERTIFICATE)
    bare.maximum_version = ssl.TLSVersion.TLSv1_2  # 1.3 tells the client only after its handshake
    with pytest.raises(ssl.SSLError):
        handshake(bare, server)


def test_a_client_that_offers_other_protocols_is_refused() -> None:
    server = server_context(CERTIFICATE, KEY)
    for offered in (["spdy/1"], ["http/1.0", "h3"]):
        context = ssl.create_default_context(cafile=str(CERTIFICATE))
        context.set_alpn_protocols(offered)
        with pytest.raises(ssl.SSLError, match="alert no application protocol"):
            handshake(context, server)
    assert server.failures == 2
    context.set_alpn_protocols(["h3", "http/1.1"])
    assert handshake(context, server)[1].selected_alpn_protocol() == "http/1.1"


@pytest.mark.parametrize(
    ("version", "suites", "alert"),
    [
        (ssl.TLSVersion.TLSv1, "ALL:@SECLEVEL=0", "alert protocol version"),
        (ssl.TLSVersion.TLSv1_1, "ALL:@SECLEVEL=0", "alert protocol version"),
        (ssl.TLSVersion.TLSv1_2, "ECDHE+AES+SHA:AES128-GCM-SHA256:DHE+AESGCM:@SECLEVEL=0", "alert handshake failure"),
    ],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_and_weak_suites_are_refused(version: ssl.TLSVersion, suites: str, alert: str) -> None:
    context = client_context(CERTIFICATE)
    context.set_ciphers(suites)
    context.minimum_version = context.maximum_version = version
    with pytest.raises(ssl.SSLError, match=alert):
        handshake(context, server_context(CERTIFICATE, KEY))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_proves_its_identity_and_keeps_it_in_a_resumed_session(
    version: ssl.TLSVersion, tmp_path: Path
) -> None:
    files = tmp_path / "ca"
    authority = Authority.create(files, timedelta(days=1), datetime.now(UTC))
    leaf = Leaf("both", read_names(["localhost"], ["spiffe://example.org/both"]), True, True, timedelta(days=1))
    authority.issue(leaf, datetime.now(UTC))
    certificate, key, ca = files / "both/tls.crt", files / "both/tls.key", files / "ca.crt"
    server = server_context(certificate, key, ca)
    client = client_context(ca, certificate=certificate, key=key)
    client.maximum_version = version
    first, accepted = handshake(client, server)
    assert peer_identity(accepted) == ("spiffe://example.org/both", "localhost")
    accepted.write(b"x")
    first.read(1)
    assert first.session is not None
    assert first.session.has_ticket
    _, resumed = handshake(client, server, session=first.session)
    assert resumed.session_reused
    assert peer_identity(resumed) == ("spiffe://example.org/both", "localhost")
    _, anonymous = handshake(client, server_context(certificate, key))
    assert peer_identity(anonymous) == ()
    assert peer_identity(None) == ()


def test_errors_name_the_file(tmp_path: Path) -> None:
    absent = tmp_path / "absent.pem"
    with pytest.raises(ConfigError, match="absent"):
        server_context(absent, KEY)
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    with pytest.raises(ConfigError, match="garbage"):
        server_context(CERTIFICATE, KEY, client_ca=garbage)


def test_an_encrypted_key_is_refused_without_asking_at_the_terminal(tmp_path: Path) -> None:
    encrypted = tmp_path / "encrypted.key"
    command = ["openssl", "pkey", "-aes256", "-passout", "pass:x", "-in", str(KEY), "-out", str(encrypted)]
    subprocess.run(command, check=True)
    with pytest.raises(ConfigError, match="encrypted; give one without a passphrase"):
        server_context(CERTIFICATE, encrypted)
