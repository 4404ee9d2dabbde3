"""A listener's context follows its files: pairs, authorities, broken and expired files, links of Kubernetes."""

from __future__ import annotations

import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog

from isochrone.secure.certificates.authority import Authority
from isochrone.secure.certificates.minting import Leaf
from isochrone.secure.certificates.subject_names import read_names
from isochrone.wire.tls.contexts import ServerTls, client_context, server_context
from tls_ends import handshake

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
LEAF = Leaf("both", read_names(["localhost"], []), True, True, DAY)


class Files:
    """A development authority, and a listener's context of its files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority.create(directory, 10 * DAY, NOW)
        self.authority.issue(LEAF, NOW)
        self.certificate, self.key = directory / "both/tls.crt", directory / "both/tls.key"
        self.ca = directory / "ca.crt"

    def tls(self) -> ServerTls:
        return server_context(self.certificate, self.key, self.ca)

    def client(self) -> ssl.SSLContext:
        return client_context(self.ca, certificate=self.certificate, key=self.key)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "ca")


def serial_of(tls: ServerTls, client: ssl.SSLContext) -> str:
    certificate = handshake(client, tls)[0].getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def test_new_connections_get_a_new_certificate_and_open_ones_go_on(files: Files) -> None:
    tls, client = files.tls(), files.client()
    before, (near, far) = serial_of(tls, client), handshake(client, tls)
    expires = tls.expires
    (held,) = files.authority.renew(NOW + timedelta(minutes=1))
    assert serial_of(tls, client) == before
    tls.refresh()
    assert serial_of(tls, client) == held.facts.serial != before
    assert tls.expires == held.facts.expires.timestamp() != expires
    near.write(b"still here")
    assert far.read(100) == b"still here"


def test_a_key_without_its_certificate_is_waited_for(files: Files) -> None:
    """The log has a line only if the files still do not fit at the second look."""
    tls, client = files.tls(), files.client()
    before = serial_of(tls, client)
    certificate = files.certificate.read_bytes()
    files.authority.renew(NOW)
    renewed = files.certificate.read_bytes()
    files.certificate.write_bytes(certificate)
    with structlog.testing.capture_logs() as lines:
        tls.refresh()
        assert lines == []
        for _ in range(5):
            tls.refresh()
        assert [line["log_level"] for line in lines] == ["warning"]
        assert "key values mismatch" in lines[0]["error"]
        assert serial_of(tls, client) == before
        files.certificate.write_bytes(renewed)
        tls.refresh()
    assert serial_of(tls, client) != before
    assert [line["log_level"] for line in lines] == ["warning", "info"]


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", None]
)
@pytest.mark.parametrize("name", ["certificate", "key", "ca"])
def test_a_broken_file_keeps_the_earlier_ones(files: Files, name: str, content: bytes | None) -> None:
    tls, client = files.tls(), files.client()
    before, expires = serial_of(tls, client), tls.expires
    path: Path = getattr(files, name)
    good = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            tls.refresh()
    assert str(path) in lines[0]["error"]
    assert serial_of(tls, client) == before
    assert tls.expires == expires
    path.write_bytes(good)
    tls.refresh()
    assert serial_of(tls, client) == before


def test_an_expired_certificate_does_not_replace_a_valid_one(files: Files) -> None:
    tls, client = files.tls(), files.client()
    before = serial_of(tls, client)
    files.authority.renew(NOW - 2 * DAY)
    with structlog.testing.capture_logs() as lines:
        tls.refresh()
        tls.refresh()
    assert "expired" in lines[0]["error"]
    assert serial_of(tls, client) == before
    # Where both have expired, the file is what was asked for.
    expired = files.tls()
    files.authority.renew(NOW - 3 * DAY)
    expired.refresh()
    assert expired.expires == (NOW - 2 * DAY).replace(microsecond=0).timestamp()


def test_an_authority_that_is_removed_lets_nobody_in_not_even_by_an_old_session(files: Files, tmp_path: Path) -> None:
    other = Files(tmp_path / "other")
    trusts_both = tmp_path / "both.crt"
    trusts_both.write_bytes(files.ca.read_bytes() + other.ca.read_bytes())
    tls = server_context(files.certificate, files.key, trusts_both)
    client = client_context(files.ca, certificate=other.certificate, key=other.key)
    near, far = handshake(client, tls)
    far.write(b"x")
    near.read(1)
    session = near.session
    assert handshake(client, tls, session=session)[1].session_reused
    trusts_both.write_bytes(files.ca.read_bytes())
    tls.refresh()
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        handshake(client, tls, session=session)
    assert handshake(files.client(), tls)


def test_a_secret_of_kubernetes_is_followed_through_its_links(files: Files, tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()

    def publish(version: str) -> None:
        (mounted / version).mkdir()
        for path in (files.certificate, files.key, files.ca):
            shutil.copy(path, mounted / version / path.name)
        (mounted / "..new").symlink_to(version)
        (mounted / "..new").replace(mounted / "..data")

    publish("..1")
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (mounted / name).symlink_to(f"..data/{name}")
    tls, client = server_context(mounted / "tls.crt", mounted / "tls.key", mounted / "ca.crt"), files.client()
    before = serial_of(tls, client)
    (held,) = files.authority.renew(NOW)
    publish("..2")
    tls.refresh()
    assert serial_of(tls, client) == held.facts.serial != before


def test_failed_handshakes_are_counted_and_logged_once_a_minute(files: Files) -> None:
    tls = files.tls()
    bare = client_context(files.ca)
    bare.maximum_version = ssl.TLSVersion.TLSv1_2
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            with pytest.raises(ssl.SSLError):
                handshake(bare, tls)
    assert tls.failures == 3
    assert [line["reason"] for line in lines] == ["the client shows no certificate"]
