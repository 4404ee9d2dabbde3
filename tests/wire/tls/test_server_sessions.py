"""A client of many servers: sessions per server, files that change, and what it says of a failure."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from development_ca import DevelopmentCa
from isochrone.errors import ConfigError
from isochrone.wire.tls.client_tls import ClientTls
from isochrone.wire.tls.contexts import ServerTls, peer_identity, server_context
from tls_ends import handshake


@pytest.fixture
def ca(tmp_path: Path) -> DevelopmentCa:
    return (
        DevelopmentCa(tmp_path / "ca").issue("server", "localhost").issue("client", client=True, uri="spiffe://a.b/c")
    )


def server_of(ca: DevelopmentCa) -> ServerTls:
    certificate, key = map(Path, ca.pair("server"))
    return server_context(certificate, key, ca.ca)


def client_of(ca: DevelopmentCa) -> ClientTls:
    certificate, key = map(Path, ca.pair("client"))
    return ClientTls(ca.ca, certificate, key)


def talk(near: ssl.SSLObject, far: ssl.SSLObject) -> None:
    """The tickets of TLS 1.3 come with the first answer."""
    far.write(b"x")
    near.read(1)


def test_the_next_connection_resumes_the_session_of_its_own_server(ca: DevelopmentCa) -> None:
    client, server, other = client_of(ca), server_of(ca), server_of(ca)
    to_server, to_other = client.to_server(), client.to_server()
    near, far = handshake(to_server, server)
    assert not far.session_reused
    talk(near, far)
    _, far = handshake(to_server, server)
    assert far.session_reused
    assert peer_identity(far) == ("spiffe://a.b/c",)
    assert not handshake(to_other, other)[1].session_reused


def test_connections_that_begin_together_do_not_read_each_others_unfinished_sessions(ca: DevelopmentCa) -> None:
    server, to_server = server_of(ca), client_of(ca).to_server(http2=True)
    unfinished = to_server.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        unfinished.do_handshake()
    near, far = handshake(to_server, server)
    talk(near, far)
    to_server.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    assert handshake(to_server, server)[1].session_reused


def test_new_files_give_up_sessions_and_are_presented(ca: DevelopmentCa) -> None:
    client, server = client_of(ca), server_of(ca)
    to_server = client.to_server()
    talk(*handshake(to_server, server))
    client.refresh()
    assert handshake(to_server, server)[1].session_reused
    held = {each.name: each.facts.serial for each in ca.authority.renew(datetime.now(UTC))}
    client.refresh()
    _, far = handshake(to_server, server)
    assert not far.session_reused
    certificate = far.getpeercert()
    assert certificate is not None
    assert certificate["serialNumber"] == held["client"]


@pytest.mark.parametrize("name", ["ca.crt", "client/tls.crt", "client/tls.key"])
def test_a_broken_file_leaves_the_earlier_ones_in_use(ca: DevelopmentCa, name: str) -> None:
    client, server = client_of(ca), server_of(ca)
    (ca.directory / name).write_text("broken")
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            client.refresh()
    assert [line["log_level"] for line in lines] == ["warning"]
    assert handshake(client.to_server(), server)
    with pytest.raises(ConfigError, match=name.replace("/", r"/")):
        client_of(ca)


def test_a_refused_server_is_told_and_the_client_knows_why(ca: DevelopmentCa) -> None:
    to_server = client_of(ca).to_server()
    server = server_of(ca)
    with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
        # Where the server closes first, an event loop's error says only that the connection ended.
        handshake(to_server, server, "elsewhere")
    assert isinstance(to_server.failure, ssl.SSLCertVerificationError)
    assert "Hostname mismatch" in str(to_server.failure)
    assert server.failures == 1
    handshake(to_server, server)
    assert to_server.failure is None
