"""What failed fetches and dead processes left in a cache goes; what others use stays."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from isochrone.errors import FetchFailed
from isochrone.models.sources.cache.cache import ModelCache
from isochrone.models.sources.cache.locks import exclusive
from isochrone.models.sources.files import StoredFile

_URL = "s3://bucket/models"
_OLD = 1_000_000_000


def file_of(content: bytes, *, is_stated: bool = True) -> StoredFile:
    sha256 = hashlib.sha256(content).hexdigest()
    return StoredFile("m/1/model.onnx", len(content), sha256[:8], sha256 if is_stated else "")


def make_room(cache: ModelCache) -> None:
    cache.make_room(_URL, [file_of(b"not here")])


def away(start: int, end: int) -> Iterator[bytes]:
    raise FetchFailed("the store is away")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_lock_of_a_failed_fetch_goes_and_that_of_a_running_one_stays(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    with pytest.raises(FetchFailed, match="away"):
        cache.fetch(_URL, file_of(b"x"), away)
    failed = tmp_path / "downloads" / f"{file_of(b'x').sha256}.lock"
    assert failed.exists()
    running = tmp_path / "downloads" / "running.lock"
    with exclusive(running, lambda: None):
        make_room(cache)
        assert running.exists()
    assert not failed.exists()
    assert failed.with_suffix(".part").exists(), "it can be resumed"
    assert cache.fetch(_URL, file_of(b"x"), lambda start, end: iter([b"x"]))
    assert names(tmp_path / "downloads") == ["running.lock"]


def test_files_that_a_killed_process_was_writing_go(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    left = [tmp_path / folder / f".{'0' * 64}.1" for folder in ("objects", "listings")]
    left += [tmp_path / "downloads" / "1.journal", tmp_path / "trees" / "2.lock"]
    for path in left:
        path.write_bytes(b"")
    make_room(cache)
    assert not [path for path in left if path.exists()]


def test_a_directory_without_files_stays_while_it_is_used(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    with cache.tree("m") as building:
        building.add_folder("1")
        tree = building.finish()
    make_room(cache)
    assert tree.directory.is_dir()
    tree.release()
    make_room(cache)
    assert not names(tmp_path / "trees")


def test_a_directory_with_a_damaged_file_stays_while_it_is_used(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    with cache.tree("m") as building:
        assert building.add("1/model.onnx", cache.fetch(_URL, file_of(b"x"), lambda start, end: iter([b"x"])))
        tree = building.finish()
    path = tree.directory / "1" / "model.onnx"
    path.chmod(0o600)
    path.write_bytes(b"y")
    restarted = ModelCache(tmp_path)
    assert not restarted.holds(_URL, file_of(b"x"))
    make_room(restarted)
    assert path.exists()
    tree.release()
    make_room(restarted)
    assert not names(tmp_path / "trees")


@pytest.mark.parametrize("is_stated", [True, False])
def test_an_old_listing_goes_with_the_last_of_its_files(tmp_path: Path, is_stated: bool) -> None:
    cache = ModelCache(tmp_path)
    file = file_of(b"x", is_stated=is_stated)
    cache.save_listing(_URL, "m", [file])
    (listing,) = (tmp_path / "listings").iterdir()
    make_room(cache)
    assert cache.saved_listing(_URL, "m") == [file], "it may be that of a model that is about to be fetched"
    cache.fetch(_URL, file, lambda start, end: iter([b"x"]))
    os.utime(listing, (_OLD, _OLD))
    make_room(cache)
    assert cache.saved_listing(_URL, "m") == [file]
    assert listing.stat().st_mtime > _OLD
    (blob,) = (path for path in (tmp_path / "blobs").rglob("*") if path.is_file())
    blob.unlink()
    os.utime(listing, (_OLD, _OLD))
    make_room(cache)
    assert cache.saved_listing(_URL, "m") is None


def test_names_without_a_model_leave_no_listing(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    cache.save_listing(_URL, "m", [file_of(b"x")])
    for name in ("m", "other"):
        cache.save_listing(_URL, name, [])
        assert cache.saved_listing(_URL, name) is None
    cache.save_listing(_URL, "", [])
    assert cache.saved_listing(_URL, "") == [], "the repository is empty"


def test_processes_with_the_same_id_write_different_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in pods: each process is number 1 of its own."""
    written: list[str] = []
    write_bytes = Path.write_bytes

    def noted(path: Path, content: bytes) -> int:
        written.append(path.name)
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", noted)
    for _ in range(2):
        ModelCache(tmp_path).save_listing(_URL, "m", [file_of(b"x")])
    assert len(set(written)) == 2
