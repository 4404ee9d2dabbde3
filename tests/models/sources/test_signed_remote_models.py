"""Signed versions in an object store: the signature comes along, and counts for what was fetched."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_files import IDENTITY

from bench.models.object_store import S3
from isochrone.models.repository.digest import digest
from isochrone.models.repository.repository import Repository
from isochrone.models.repository.signed.copies import VerifiedCopies
from isochrone.models.sources.cache.cache import ModelCache
from isochrone.models.sources.locations import parse_location
from isochrone.models.sources.manifest import MANIFEST, manifest_of
from isochrone.secure.signing.signed_version import SignatureRefused
from isochrone.secure.signing.signer import Signer
from signed_models import sign_version
from signing_keys import Key, make_key


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return make_key(tmp_path)


@pytest.fixture
def model(s3: S3, key: Key) -> Path:
    model = s3.repository / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text("class Model: ...\n")
    (model / "config.pbtxt").write_text(IDENTITY)
    sign_version(Signer(key.private), model)
    return model


@pytest.fixture
def repository(s3: S3, key: Key, tmp_path: Path) -> Repository:
    cache = ModelCache(tmp_path / "cache")
    return Repository([parse_location(s3.url)], cache=cache, verified=VerifiedCopies([key.public]))


@pytest.mark.parametrize("has_manifest", [False, True], ids=["listed", "manifest"])
def test_a_signed_version_is_fetched_and_verified(
    s3: S3, repository: Repository, model: Path, has_manifest: bool
) -> None:
    if has_manifest:
        (s3.repository / MANIFEST).write_bytes(manifest_of(s3.repository))
    found = repository.read("m")
    assert found.provenance[1].signer.startswith("key sha256:")
    assert found.config_source == "s3://bucket/models/m/config.pbtxt"
    own = Repository([s3.repository]).read("m")
    assert digest(found.config, found.versions[1]) == digest(own.config, own.versions[1])


def test_what_was_changed_in_the_store_is_refused(repository: Repository, model: Path) -> None:
    (model / "1" / "model.py").write_text("class Model: pass\n")
    with pytest.raises(SignatureRefused, match=r"'1/model\.py' has other bytes"):
        repository.read("m")


def test_an_unsigned_version_is_refused(repository: Repository, model: Path) -> None:
    (model / "1.sig").unlink()
    with pytest.raises(SignatureRefused, match="it is not signed"):
        repository.read("m")
