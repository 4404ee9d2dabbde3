"""The use of OpenSSF's library: signed lists of files in Sigstore bundles, and back.

The library hashes whole directories by itself; here the caller has the hashes, since a worker must load the very bytes
that it hashed. So this module uses the library's signers, verifiers and manifests, which are one level below its
documented functions. A test verifies what is signed here with the library's own command.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isochrone.errors import ConfigError

#: Largest signature file. A line for each of 50,000 files fits.
MAX_BYTES = 16 << 20
#: Our part of the predicate; OpenSSF's format lets verifiers ignore other fields.
_OWN = "isochrone"
_METHOD = {"method": "files", "hash_type": "sha256"}


def library(module: str) -> Any:
    """A module of an optional package. Importing the library takes half a second and 50 MB: only who signs pays."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        expected = "the packages for signatures: pip install 'isochrone[secure]'"
        raise ConfigError("signatures", "packages", expected, str(error)) from None


def write_bundle(signer: Any, subject: str, files: Mapping[str, str], stated: Mapping[str, str]) -> bytes:
    """The signature over ``files`` (path → SHA-256) under the name ``subject``. ``signer`` is one of the library's."""
    manifests, hashing = library("model_signing.manifest"), library("model_signing._hashing.hashing")
    kind = manifests.SerializationType.from_args({**_METHOD, "allow_symlinks": True})
    items = [kind.new_item(path, hashing.Digest("sha256", bytes.fromhex(digest))) for path, digest in files.items()]
    payload = library("model_signing._signing.signing").Payload(manifests.Manifest(subject, items, kind))
    payload.statement.pb.predicate.update({_OWN: dict(stated)})
    return str(signer.sign(payload).bundle.to_json()).encode()


def read_bundle(content: bytes) -> Any:
    """The library's signature object. Nothing of it is verified. Raises anything for content that is none."""
    # The library reads paths alone.
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return library("model_signing._signing.sign_sigstore_pb").Signature.read(Path(file.name))


def verified_content(verifier: Any, signature: Any) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Name, files (path → SHA-256) and what the signer states besides. Raises anything for a wrong signature."""
    manifest = verifier.verify(signature)
    method = manifest.serialization_type
    if any(method.get(key) != value for key, value in _METHOD.items()):
        raise ValueError("it does not list whole files with SHA-256")
    files = {}
    for item in manifest.resource_descriptors():
        if item.digest.algorithm != "sha256":
            raise ValueError(f"{item.identifier} has a hash of kind {item.digest.algorithm}, not SHA-256")
        files[item.identifier] = item.digest.digest_hex
    # The bytes that were verified just now.
    stated = json.loads(signature.bundle.dsse_envelope.payload)["predicate"].get(_OWN)
    return manifest.model_name, files, stated if isinstance(stated, dict) else {}
