"""Encrypted versions in an object store: their wrapped key comes along, and caches hold no plain text."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_files import IDENTITY

from bench.models.object_store import S3
from encrypted_models import encrypt_model, write_key
from isochrone.cli.files.checking import check
from isochrone.models.repository.encrypted.copies import DecryptedVersions
from isochrone.models.repository.encrypted.in_memory import is_in_memory
from isochrone.models.repository.repository import Repository
from isochrone.models.sources.cache.cache import ModelCache
from isochrone.models.sources.locations import parse_location
from isochrone.models.sources.manifest import MANIFEST, manifest_of
from isochrone.secure.encryption.failures import EncryptionRefused, NoKey
from isochrone.secure.encryption.model_keys import ModelKeys

pytestmark = pytest.mark.skipif(not is_in_memory("/dev/shm"), reason="/dev/shm is no tmpfs here")

_CODE = "class Model: ...  # plain text\n"


@pytest.fixture
def model(s3: S3, tmp_path: Path) -> Path:
    model = s3.repository / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(_CODE)
    (model / "config.pbtxt").write_text(IDENTITY)
    encrypt_model(write_key(tmp_path), model)
    return model


def opened(s3: S3, tmp_path: Path, key: str = "") -> Repository:
    decrypting = DecryptedVersions(ModelKeys([key])) if key else None
    return Repository([parse_location(s3.url)], cache=ModelCache(tmp_path / "cache"), decrypting=decrypting)


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("has_manifest", [False, True], ids=["listed", "manifest"])
def test_an_encrypted_version_is_fetched_and_decrypted(s3: S3, tmp_path: Path, has_manifest: bool) -> None:
    if has_manifest:
        (s3.repository / MANIFEST).write_bytes(manifest_of(s3.repository))
    found = opened(s3, tmp_path, write_key(tmp_path)).read("m")
    assert (found.versions[1] / "model.py").read_text() == _CODE
    cached = [each for each in (tmp_path / "cache").rglob("*") if each.is_file()]
    assert cached
    assert not any(_CODE.encode() in each.read_bytes() for each in cached)


@pytest.mark.usefixtures("model")
def test_without_a_key_it_is_listed_and_not_loaded(s3: S3, tmp_path: Path) -> None:
    assert check(s3.url).problems == ()
    with pytest.raises(NoKey, match="is encrypted"):
        opened(s3, tmp_path).read("m")


def test_what_was_changed_in_the_store_is_refused(s3: S3, tmp_path: Path, model: Path) -> None:
    file = model / "1" / "model.py.encrypted"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(EncryptionRefused, match="is not what was encrypted"):
        opened(s3, tmp_path, write_key(tmp_path)).read("m")
