"""Encrypted models that a runtime would extract to a disk."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from encrypted_models import encrypt_model, write_key
from isochrone.errors import ConfigError
from isochrone.models.repository.encrypted.copies import DecryptedVersions
from isochrone.models.repository.encrypted.in_memory import is_in_memory
from isochrone.models.repository.repository import Repository
from isochrone.secure.encryption.model_keys import ModelKeys
from isochrone.worker.catalog import plain_text
from isochrone.worker.catalog.plain_text import check_stays_in_memory
from sample_models import write_config

pytestmark = pytest.mark.skipif(not is_in_memory("/dev/shm"), reason="/dev/shm is no tmpfs here")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """``package`` would be extracted, ``program`` is read."""
    models = tmp_path / "models"
    for name, member in (("package", "model/data/aotinductor/model/x.json"), ("program", "model/data/weights/x")):
        write_config(
            models / name,
            """
            backend: "pytorch"
            input { name: "x" data_type: TYPE_FP32 dims: [1] }
            output { name: "y" data_type: TYPE_FP32 dims: [1] }
            """,
        )
        (models / name / "1").mkdir()
        with zipfile.ZipFile(models / name / "1" / "model.pt2", "w") as archive:
            archive.writestr(member, "{}")
    return models


def check(repository: Path, tmp_path: Path, name: str, *, allow_disk: bool) -> None:
    decrypting = DecryptedVersions(ModelKeys([write_key(tmp_path)]), allow_disk=allow_disk)
    check_stays_in_memory(Repository([repository], decrypting=decrypting).read(name), 1, "torch")


def test_an_encrypted_package_is_refused_where_it_would_be_on_a_disk(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(repository, tmp_path, "package", allow_disk=False)
    for name in ("package", "program"):
        encrypt_model(write_key(tmp_path), repository / name)
    if not is_in_memory(str(plain_text.EXTRACTED_TO)):
        with pytest.raises(ConfigError, match="extracts AOTInductor packages to /tmp, which is a disk"):
            check(repository, tmp_path, "package", allow_disk=False)
    check(repository, tmp_path, "program", allow_disk=False)
    check(repository, tmp_path, "package", allow_disk=True)
    monkeypatch.setattr(plain_text, "EXTRACTED_TO", Path("/dev/shm"))
    check(repository, tmp_path, "package", allow_disk=False)
