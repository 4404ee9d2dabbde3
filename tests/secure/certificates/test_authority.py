"""The development authority: files, their permissions, and that both sides of every step of a rotation shake hands."""

from __future__ import annotations

import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from isochrone.errors import AlreadyExists, ConfigError, FlagError, NotFound
from isochrone.secure.certificates import minting
from isochrone.secure.certificates.authority import Authority
from isochrone.secure.certificates.minting import Leaf
from isochrone.secure.certificates.stages import Stage, Step
from isochrone.secure.certificates.subject_names import SubjectNames, read_names
from tls_ends import handshake

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
BOTH = Leaf("both", read_names(["localhost", "127.0.0.1"], ["spiffe://example.org/both"]), True, True, DAY)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    Authority.create(tmp_path / "ca", 10 * DAY, NOW).issue(BOTH, NOW)
    return tmp_path / "ca"


def contexts(files: Path, name: str = "both") -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A client and a server with mutual TLS, as processes that read these files now."""
    client = ssl.create_default_context(cafile=str(files / "ca.crt"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_verify_locations(files / "ca.crt")
    server.verify_mode = ssl.CERT_REQUIRED
    for context in (client, server):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_cert_chain(files / name / "tls.crt", files / name / "tls.key")
    return client, server


def test_a_certificate_serves_both_ends(directory: Path) -> None:
    _, server = handshake(*contexts(directory))
    certificate = server.getpeercert()
    assert certificate is not None
    assert certificate["subjectAltName"] == (
        ("URI", "spiffe://example.org/both"),
        ("DNS", "localhost"),
        ("IP Address", "127.0.0.1"),
    )
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(*contexts(directory), name="elsewhere")


def test_keys_are_their_owners_alone_and_nothing_else_is_left(directory: Path, tmp_path: Path) -> None:
    Authority(directory).replace(DAY, NOW)
    modes = {str(path.relative_to(directory)): path.stat().st_mode & 0o777 for path in directory.rglob("*.*")}
    private, public = 0o600, 0o644
    assert modes == {
        "ca.crt": public,
        "ca.key": private,
        "next-ca.key": private,
        "both/tls.crt": public,
        "both/tls.key": private,
    }


def test_renewal_changes_keys_and_keeps_names_roles_and_lifetime(directory: Path) -> None:
    before, key = (directory / "both/tls.crt").read_bytes(), (directory / "both/tls.key").read_bytes()
    later = NOW + timedelta(hours=5)
    (held,) = Authority(directory).renew(later)
    after = (directory / "both/tls.crt").read_bytes()
    assert (directory / "both/tls.key").read_bytes() != key
    assert minting.leaf_of(after) == minting.leaf_of(before) == BOTH
    assert held.facts.serial != minting.facts_of(before).serial
    assert held.facts.expires == (later + DAY).replace(microsecond=0)


def test_a_certificate_does_not_outlive_its_authority(directory: Path) -> None:
    long = Leaf("long", SubjectNames(("a",)), True, False, 100 * DAY)
    assert Authority(directory).issue(long, NOW).facts.expires == (NOW + 10 * DAY).replace(microsecond=0)
    with pytest.raises(ConfigError, match="expired"):
        Authority(directory).issue(long, NOW + 11 * DAY)


def test_roles_are_enforced_by_the_other_end(directory: Path) -> None:
    authority = Authority(directory)
    authority.issue(Leaf("server", SubjectNames(("localhost",)), True, False, DAY), NOW)
    held = authority.issue(Leaf("alice", SubjectNames(), False, True, DAY), NOW)
    assert held.leaf is not None
    assert held.leaf.names.dns == ("alice",)
    _, server = contexts(directory)
    client, _ = contexts(directory, "alice")
    handshake(client, server)
    for client_name, server_name in (("server", "both"), ("both", "alice")):
        client, server = contexts(directory, client_name)[0], contexts(directory, server_name)[1]
        client.check_hostname = False
        with pytest.raises(ssl.SSLError, match=r"unsuitable certificate purpose|unsupported certificate"):
            handshake(client, server)


def test_both_sides_of_every_step_of_a_rotation_trust_each_other(directory: Path, tmp_path: Path) -> None:
    steps = []
    for number in range(6):
        before = tmp_path / f"before-{number}"
        shutil.copytree(directory, before)
        steps.append(Authority(directory).replace(10 * DAY, NOW))
        for client_files, server_files in ((before, directory), (directory, before), (directory, directory)):
            handshake(contexts(client_files)[0], contexts(server_files)[1])
    assert steps == [Step.INTRODUCE, Step.SIGN, Step.RETIRE] * 2
    with pytest.raises(ssl.SSLError):
        handshake(contexts(tmp_path / "before-0")[0], contexts(directory)[1])


def test_a_step_that_was_cut_off_is_repeated(directory: Path, tmp_path: Path) -> None:
    authority = Authority(directory)
    authority.issue(Leaf("other", SubjectNames(("localhost",)), True, True, DAY), NOW)
    authority.replace(DAY, NOW)
    shutil.copytree(directory / "other", tmp_path / "other")
    assert authority.replace(DAY, NOW) is Step.SIGN
    # As if the command had ended before it renewed this one.
    shutil.copytree(tmp_path / "other", directory / "other", dirs_exist_ok=True)
    assert authority.replace(DAY, NOW) is Step.SIGN
    assert authority.stage() is Stage.SIGNING
    assert authority.replace(DAY, NOW) is Step.RETIRE
    handshake(contexts(directory, "other")[0], contexts(directory)[1])


def test_an_authority_without_its_next_key_signs_nothing_and_goes(directory: Path) -> None:
    """The command ended between the two files of the first step."""
    authority = Authority(directory)
    authority.replace(DAY, NOW)
    (directory / "next-ca.key").unlink()
    assert authority.replace(DAY, NOW) is Step.RETIRE
    handshake(*contexts(directory))


def test_errors_name_what_to_change(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="isochrone certs init"):
        Authority(tmp_path)
    with pytest.raises(AlreadyExists, match="isochrone certs rotate"):
        Authority.create(directory, DAY, NOW)
    for name in ("", "..", "a/b", ".hidden", "a b", "x" * 65):
        with pytest.raises(FlagError, match="NAME"):
            Authority(directory).issue(Leaf(name, SubjectNames(("a",)), True, False, DAY), NOW)
    with pytest.raises(FlagError, match="--host"):
        Authority(directory).issue(Leaf("a", SubjectNames(("a",)), False, False, DAY), NOW)
    (directory / "both/tls.crt").write_text("garbage")
    with pytest.raises(ConfigError, match=r"both/tls\.crt"):
        Authority(directory).renew(NOW)
    (directory / "ca.key").write_bytes((directory / "both/tls.key").read_bytes())
    with pytest.raises(ConfigError, match=r"ca\.key: key: expected the key of a certificate in ca\.crt"):
        Authority(directory).issue(BOTH, NOW)
