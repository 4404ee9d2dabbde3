"""Encrypted versions in a repository: what is described, what is refused, and what the digest is of."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from encrypted_models import OTHER_KEY, encrypt_model, write_key
from isochrone.errors import FetchFailed, IsochroneError
from isochrone.models.repository.digest import digest
from isochrone.models.repository.encrypted import copies, in_memory
from isochrone.models.repository.encrypted.copies import DecryptedVersions
from isochrone.models.repository.encrypted.in_memory import is_in_memory, plain_text_place
from isochrone.models.repository.encrypted.names import HEADER, SUFFIX, key_name
from isochrone.models.repository.encrypted.writing import decrypt_version, encrypt_version, rewrap_version
from isochrone.models.repository.repository import Repository
from isochrone.secure.encryption.failures import EncryptionRefused, NoKey
from isochrone.secure.encryption.model_keys import ModelKeys
from sample_models import write_config, write_models, write_python

pytestmark = pytest.mark.skipif(not is_in_memory("/dev/shm"), reason="/dev/shm is no tmpfs here")

_CONFIG = """
    backend: "python"
    version_policy { all { } }
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] label_filename: "labels.txt" }
"""


class Bench:
    """Model ``m`` with an encrypted version 1: model.py, an empty file, and one in a folder."""

    def __init__(self, directory: Path) -> None:
        self.repository = directory / "models"
        self.model = self.repository / "m"
        self.key = write_key(directory)
        write_config(self.model, _CONFIG)
        (self.model / "labels.txt").write_text("cat\n")
        write_python(self.model, "class Model: ...\n")
        (self.version / "data").mkdir()
        (self.version / "data" / "weights.bin").write_bytes(bytes(range(256)) * 9000)
        (self.version / "empty").touch()
        self.plain = shutil.copytree(self.version, directory / "plain")
        encrypt_model(self.key, self.model)

    @property
    def version(self) -> Path:
        return self.model / "1"

    def keys(self) -> ModelKeys:
        return ModelKeys([self.key])

    def open(self, **options: bool) -> Repository:
        return Repository([self.repository], decrypting=DecryptedVersions(self.keys(), **options))


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Its own place of plain text: other tests leave theirs alone."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        monkeypatch.setattr(in_memory, "_SHARED_MEMORY", place)
        yield Path(place)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(each.relative_to(directory)): each.read_bytes() for each in directory.rglob("*") if each.is_file()}


def test_a_version_is_described_from_plain_files_in_memory(bench: Bench) -> None:
    found = bench.open().read("m")
    directory = found.versions[1]
    assert contents(directory) == contents(bench.plain)
    assert is_in_memory(str(directory))
    # As code may look for them, and nothing else.
    assert sorted(each.name for each in directory.parent.iterdir()) == ["1", "config.pbtxt", "labels.txt"]
    assert found.stored(1) == bench.version
    assert found.directory == bench.model
    root = directory.parent.parent
    assert root.parent.stat().st_mode & 0o777 == 0o700
    again = bench.open().read("m")
    assert again.versions[1] != directory
    del found
    gc.collect()
    assert not root.exists()


def test_the_digest_is_of_the_stored_bytes(bench: Bench) -> None:
    found = bench.open().read("m")
    before = digest(found.config, found.stored(1))
    assert before != digest(found.config, found.versions[1])
    new = write_key(bench.repository.parent, "new.key", OTHER_KEY)
    rewrap_version(bench.model, 1, bench.keys(), ModelKeys([new]))
    assert digest(found.config, found.stored(1)) == before
    with pytest.raises(NoKey):
        bench.open().read("m")
    decrypting = DecryptedVersions(ModelKeys([bench.key, new]))
    again = Repository([bench.repository], decrypting=decrypting).read("m")
    assert contents(again.versions[1]) == contents(bench.plain)


def test_commands_bring_the_files_back(bench: Bench) -> None:
    decrypt_version(bench.model, 1, 3, bench.keys())
    assert contents(bench.model / "3") == contents(bench.plain)
    decrypt_version(bench.model, 1, 1, bench.keys())
    assert contents(bench.version) == contents(bench.plain)
    assert not (bench.model / key_name(1)).exists()
    assert [each.name for each in bench.repository.iterdir()] == ["m"]


def test_a_version_that_exists_is_not_replaced_by_another(bench: Bench) -> None:
    (bench.model / "2").mkdir()
    (bench.model / key_name(2)).write_text("of version 2")
    decrypt_version(bench.model, 1, 3, bench.keys())
    for target in (2, 1):
        with pytest.raises(IsochroneError, match="does not exist yet"):
            encrypt_version(bench.model, 3, target, bench.keys())
    with pytest.raises(EncryptionRefused, match="encrypted already"):
        encrypt_version(bench.model, 1, 4, bench.keys())
    assert (bench.model / key_name(2)).read_text() == "of version 2"


def test_plain_and_encrypted_versions_are_served_side_by_side(bench: Bench) -> None:
    write_python(bench.model, "class Model: ...\n", 2)
    found = bench.open().read("m")
    assert found.versions[2] == bench.model / "2" == found.stored(2)
    with pytest.raises(EncryptionRefused, match="version 2 is refused: it is not encrypted"):
        bench.open(required=True).read("m")
    assert bench.open(required=True).read("m", versions=[1]).versions.keys() == {1}


def test_a_version_without_files_needs_no_encryption(bench: Bench) -> None:
    write_models(bench.repository, "pipeline")
    assert bench.open(required=True).read("pipeline").versions.keys() == {1}


def test_a_process_without_keys_says_so(bench: Bench) -> None:
    with pytest.raises(NoKey, match="model 'm' version 1 is encrypted, and this process has no key"):
        Repository([bench.repository]).read("m")


def swap(one: Path, other: Path) -> None:
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def flip(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def weights(bench: Bench) -> Path:
    return bench.version / "data" / f"weights.bin{SUFFIX}"


TAMPERED: dict[str, tuple[Callable[[Bench], object], str]] = {
    "a bit of a file": (lambda bench: flip(weights(bench), 2_000_000), "weights.bin.encrypted' is not what was"),
    "a bit of the salt": (lambda bench: flip(weights(bench), 30), "weights.bin.encrypted' is not what was"),
    "a shorter file": (
        lambda bench: weights(bench).write_bytes(weights(bench).read_bytes()[:-1]),
        "has another size than was encrypted",
    ),
    "a file less": (lambda bench: weights(bench).unlink(), "weights.bin.encrypted' is missing"),
    "a plain file more": (
        lambda bench: (bench.version / "evil.py").write_text("import os"),
        "'evil.py' is not among the files that were encrypted",
    ),
    "a plain file in place of an encrypted one": (
        lambda bench: weights(bench).rename(weights(bench).with_suffix("")),
        "is missing",
    ),
    "a pipe in place of a file": (
        lambda bench: (weights(bench).unlink(), __import__("os").mkfifo(weights(bench))),
        "is missing",
    ),
    "two files swapped": (
        lambda bench: (
            (bench.version / f"same{SUFFIX}").write_bytes(weights(bench).read_bytes()),
            swap(bench.version / f"model.py{SUFFIX}", bench.version / f"empty{SUFFIX}"),
            (bench.version / f"same{SUFFIX}").unlink(),
        ),
        "has another size",
    ),
    "a header that lists less": (
        lambda bench: (
            (bench.version / HEADER).write_text(
                (bench.version / HEADER).read_text().replace('  "empty": 0,\n', "").replace('"empty":0,', "")
            ),
            (bench.version / f"empty{SUFFIX}").unlink(),
        ),
        "encryption.json was changed",
    ),
    "a header that leads out": (
        lambda bench: (bench.version / HEADER).write_text(
            (bench.version / HEADER).read_text().replace('"empty"', '"../../x"')
        ),
        "encryption.json was changed",
    ),
    "no header's form": (lambda bench: (bench.version / HEADER).write_text("{}"), "no header of an encrypted version"),
    "a large header": (
        lambda bench: (bench.version / HEADER).write_bytes(b" " * (17 << 20)),
        "its header is larger",
    ),
    "the wrapped key": (lambda bench: (bench.model / key_name(1)).write_text("{}"), "is no wrapped key"),
    "no wrapped key": (lambda bench: (bench.model / key_name(1)).unlink(), "cannot be read"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_what_was_changed_is_refused(bench: Bench, memory: Path, what: str) -> None:
    change, reason = TAMPERED[what]
    change(bench)
    with pytest.raises(EncryptionRefused, match="model 'm' version 1 ") as refused:
        bench.open().read("m")
    assert reason in str(refused.value)
    # Nothing of it stays, though the error does.
    assert not list(memory.glob("isochrone-decrypted-*/*/m"))


def test_files_of_equal_size_cannot_be_swapped(bench: Bench) -> None:
    decrypt_version(bench.model, 1, 1, bench.keys())
    (bench.version / "twin").write_bytes((bench.version / "model.py").read_bytes()[::-1])
    encrypt_model(bench.key, bench.model)
    swap(bench.version / f"model.py{SUFFIX}", bench.version / f"twin{SUFFIX}")
    with pytest.raises(EncryptionRefused, match="taken from another place"):
        bench.open().read("m")


def test_another_version_or_model_cannot_take_its_place(bench: Bench) -> None:
    shutil.copytree(bench.version, bench.model / "2")
    shutil.copy(bench.model / key_name(1), bench.model / key_name(2))
    with pytest.raises(EncryptionRefused, match="it was encrypted as m/1"):
        bench.open().read("m")
    shutil.rmtree(bench.model / "2")
    shutil.copytree(bench.model, bench.repository / "n")
    config = bench.repository / "n" / "config.pbtxt"
    config.write_text(config.read_text().replace('"m"', '"n"'))
    with pytest.raises(EncryptionRefused, match="it was encrypted as m/1"):
        bench.open().read("n")
    # Nor with the names changed.
    header = bench.repository / "n" / "1" / HEADER
    header.write_text(header.read_text().replace('"m"', '"n"'))
    with pytest.raises(EncryptionRefused, match="was changed, or made for another version"):
        bench.open().read("n")


def test_files_of_an_earlier_encryption_do_not_open(bench: Bench) -> None:
    """Of the same version and plain text: each encryption has a key of its own."""
    earlier = weights(bench).read_bytes()
    decrypt_version(bench.model, 1, 1, bench.keys())
    encrypt_model(bench.key, bench.model)
    weights(bench).write_bytes(earlier)
    with pytest.raises(EncryptionRefused, match="is not what was encrypted"):
        bench.open().read("m")


def test_an_open_version_is_used_again_while_its_files_stay(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_settled", lambda stamps: True)
    repository = bench.open()
    found = repository.read("m")
    assert repository.read("m").versions == found.versions
    flip(weights(bench))
    with pytest.raises(EncryptionRefused):
        repository.read("m")
    # What is loaded stays as it was.
    assert contents(found.versions[1]) == contents(bench.plain)


def test_without_memory_the_disk_must_be_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_memory, "_SHARED_MEMORY", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if is_in_memory(str(tmp_path)):
        pytest.skip("temporary files are in memory here")
    with pytest.raises(EncryptionRefused, match="--model-key-allow-disk"):
        plain_text_place(allow_disk=False)
    assert plain_text_place(allow_disk=True) == tmp_path


def test_a_version_that_does_not_fit_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/dev/shm")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    with pytest.raises(FetchFailed, match="and 1000 are free"):
        bench.open().read("m")


def test_errors_name_the_repository_and_not_the_copy(bench: Bench) -> None:
    write_config(bench.repository / "broken", 'backend: "onnxruntime"')
    write_python(bench.repository / "broken", "")
    encrypt_model(bench.key, bench.repository / "broken")
    with pytest.raises(IsochroneError) as wrong:
        bench.open().read("broken")
    assert "/dev/shm" not in str(wrong.value)
    assert str(bench.repository / "broken") in str(wrong.value)
