"""Whose signatures count: keys, certificates and their authorities, and files that are none of it."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import ConfigError
from isochrone.secure.signing.bundles import MAX_BYTES
from isochrone.secure.signing.signed_version import SignatureRefused
from isochrone.secure.signing.signer import Signer
from isochrone.secure.signing.trust import Trust
from signing_keys import DAY, Certificate, Key, make_certificate, make_key

FILES = {"config.pbtxt": "aa" * 32, "3/model.onnx": "bb" * 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def key(folder: Path) -> Key:
    return make_key(folder)


@pytest.fixture(scope="module")
def root(folder: Path) -> Certificate:
    return make_certificate(folder, "root", is_authority=True)


@pytest.fixture(scope="module")
def signature(key: Key) -> bytes:
    return Signer(key.private).sign("detector", 3, FILES, "git:4f2a")


def signed_with(certificate: Certificate, *chain: Certificate) -> bytes:
    signer = Signer(certificate.key.private, certificate.path, [each.path for each in chain])
    return signer.sign("detector", 3, FILES)


def test_a_signature_states_the_version_its_files_and_where_they_are_from(key: Key, signature: bytes) -> None:
    signed = Trust([key.public]).verify(signature)
    assert (signed.model, signed.version, signed.files) == ("detector", "3", FILES)
    assert signed.provenance.source == "git:4f2a"
    assert signed.provenance.at.endswith("Z")
    assert signed.provenance.signer == f"key sha256:{signed.provenance.key[:16]}"


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda each: each.name)
def test_every_curve_of_the_format_signs(tmp_path: Path, curve: ec.EllipticCurve) -> None:
    key = make_key(tmp_path, curve=curve)
    assert Trust([key.public]).verify(Signer(key.private).sign("m", 1, FILES)).files == FILES


def test_one_of_several_keys_in_one_file_or_a_directory_suffices(tmp_path: Path, key: Key, signature: bytes) -> None:
    other = make_key(tmp_path, "other")
    both = tmp_path / "both.pem"
    both.write_bytes(other.public.read_bytes() + key.public.read_bytes())
    assert Trust([both]).verify(signature).files == FILES
    other.private.unlink()
    assert Trust([tmp_path]).verify(signature).files == FILES


def test_another_key_is_not_trusted(tmp_path: Path, signature: bytes) -> None:
    with pytest.raises(SignatureRefused, match="a key that is not trusted"):
        Trust([make_key(tmp_path, "other").public]).verify(signature)


def test_a_hint_that_names_a_trusted_key_proves_nothing(tmp_path: Path, key: Key, signature: bytes) -> None:
    forged = json.loads(Signer(make_key(tmp_path, "mallory").private).sign("detector", 3, FILES))
    forged["verificationMaterial"] = json.loads(signature)["verificationMaterial"]
    with pytest.raises(SignatureRefused, match="does not fit its content"):
        Trust([key.public]).verify(json.dumps(forged).encode())


def test_a_changed_list_of_files_is_refused(key: Key, signature: bytes) -> None:
    forged = json.loads(signature)
    payload = b64decode(forged["dsseEnvelope"]["payload"]).replace(b"bb" * 32, b"cc" * 32)
    forged["dsseEnvelope"]["payload"] = b64encode(payload).decode()
    with pytest.raises(SignatureRefused, match="does not fit its content"):
        Trust([key.public]).verify(json.dumps(forged).encode())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no json",
        b"null",
        b"{}",
        b'{"verificationMaterial": 3}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"verificationMaterial": ' * 5_000,
    ],
    ids=["empty", "text", "null", "object", "number", "bytes", "nested", "nested objects"],
)
def test_garbage_is_refused_with_a_short_reason(key: Key, content: bytes) -> None:
    with pytest.raises(SignatureRefused) as refused:
        Trust([key.public]).verify(content)
    assert len(str(refused.value)) < 500


def test_a_huge_file_is_refused_before_it_is_parsed(key: Key) -> None:
    with pytest.raises(SignatureRefused, match="larger than"):
        Trust([key.public]).verify(b" " * (MAX_BYTES + 1))


@given(st.data())
def test_no_change_of_a_signature_lets_other_files_through(key: Key, signature: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(signature) - 1))
    inserted = data.draw(st.binary(max_size=3))
    changed = signature[:at] + inserted + signature[at + data.draw(st.integers(0, 3)) :]
    try:
        found = Trust([key.public]).verify(changed)
    except SignatureRefused:
        return
    assert (found.model, found.version, found.files) == ("detector", "3", FILES)


# Certificates.


def test_a_certificate_of_a_trusted_authority_signs_under_its_name(folder: Path, root: Certificate) -> None:
    between = make_certificate(folder, "issuing", root, is_authority=True)
    leaf = make_certificate(folder, "robot", between, names=(x509.RFC822Name("release@example.com"),))
    signed = Trust([root.path]).verify(signed_with(leaf, between))
    assert signed.provenance.signer == "release@example.com"
    assert signed.files == FILES


def test_a_certificate_without_other_names_signs_under_its_subject(folder: Path, root: Certificate) -> None:
    leaf = make_certificate(folder, "plain", root)
    assert Trust([root.path]).verify(signed_with(leaf)).provenance.signer == "CN=plain"


def test_a_chain_of_another_authority_of_the_same_name_is_refused(tmp_path: Path, root: Certificate) -> None:
    other = make_certificate(tmp_path, "root", is_authority=True)
    leaf = make_certificate(tmp_path, "leaf", other)
    with pytest.raises(SignatureRefused, match="not trusted"):
        Trust([root.path]).verify(signed_with(leaf, other))


def test_a_certificate_that_is_no_authority_issues_nothing(tmp_path: Path, root: Certificate) -> None:
    leaf = make_certificate(tmp_path, "leaf", root)
    mallory = make_certificate(tmp_path, "mallory", leaf)
    with pytest.raises(SignatureRefused, match="not trusted"):
        Trust([root.path]).verify(signed_with(mallory, leaf))


@pytest.mark.parametrize(
    ("begins", "ends", "reason"), [(-3 * DAY, -DAY, "expired"), (DAY, 2 * DAY, "not yet valid")], ids=["past", "future"]
)
def test_a_certificate_signs_only_while_it_is_valid(
    tmp_path: Path, root: Certificate, begins: object, ends: object, reason: str
) -> None:
    leaf = make_certificate(tmp_path, "leaf", root, begins=begins, ends=ends)  # type: ignore[arg-type]
    with pytest.raises(SignatureRefused, match=reason):
        Trust([root.path]).verify(signed_with(leaf))


def test_an_expired_authority_between_is_refused(tmp_path: Path, root: Certificate) -> None:
    between = make_certificate(tmp_path, "issuing", root, is_authority=True, begins=-3 * DAY, ends=-DAY / 2)
    # The library checks the chain as of the first instant of the leaf, when that was valid.
    leaf = make_certificate(tmp_path, "leaf", between, begins=-2 * DAY)
    with pytest.raises(SignatureRefused, match="expired"):
        Trust([root.path]).verify(signed_with(leaf, between))


def test_the_certificate_of_a_tls_server_signs_nothing(tmp_path: Path, root: Certificate) -> None:
    server = make_certificate(tmp_path, "server", root, purposes=(ExtendedKeyUsageOID.SERVER_AUTH,))
    with pytest.raises(ConfigError, match="codeSigning"):
        signed_with(server)
    # As somebody who does not use this command would sign.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("isochrone.secure.signing.signer.check_certificate", lambda *_: None)
        forged = signed_with(server)
    with pytest.raises(SignatureRefused, match="codeSigning"):
        Trust([root.path]).verify(forged)


def test_a_certificate_counts_for_nothing_where_keys_are_trusted(folder: Path, root: Certificate, key: Key) -> None:
    with pytest.raises(SignatureRefused, match="no authority is trusted"):
        Trust([key.public]).verify(signed_with(make_certificate(folder, "leaf", root)))


def test_a_certificate_of_another_key_is_refused_when_signing(tmp_path: Path, root: Certificate, key: Key) -> None:
    with pytest.raises(ConfigError, match="one of another key"):
        Signer(key.private, make_certificate(tmp_path, "leaf", root).path)


# Files.


def test_files_without_keys_and_certificates_are_named(tmp_path: Path, key: Key) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("nothing")
    for place, reason in ((text, "no PEM"), (tmp_path / "absent", "No such file"), (key.private, "private key")):
        with pytest.raises(ConfigError, match=reason):
            Trust([place])
    with pytest.raises(ConfigError, match="given none"):
        Trust([])


def test_a_key_of_another_kind_is_named(tmp_path: Path) -> None:
    path = make_key(tmp_path, curve=ec.SECP256K1())
    with pytest.raises(ConfigError, match="given one on secp256k1"):
        Trust([path.public])
    with pytest.raises(ConfigError, match="given one on secp256k1"):
        Signer(path.private)


def test_a_missing_library_is_named_with_its_remedy(key: Key) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "model_signing._signing.sign_ec_key", None)
        with pytest.raises(ConfigError, match=r"pip install 'isochrone\[secure\]'"):
            Trust([key.public])


def test_workers_that_need_no_signatures_do_not_import_the_library() -> None:
    code = "import sys, isochrone.cli.processes.serve; print([m for m in sys.modules if 'model_signing' in m])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
