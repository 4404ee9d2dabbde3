"""The cache of one machine: one fetch, resumed, verified, bounded; what is in use stays."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from isochrone.errors import ConfigError, FetchFailed
from isochrone.models.sources.cache.cache import ModelCache
from isochrone.models.sources.cache.layout import CacheLayout
from isochrone.models.sources.cache.ranges import RANGE_BYTES
from isochrone.models.sources.cache.trees import Tree
from isochrone.models.sources.failures import RangesIgnored
from isochrone.models.sources.files import StoredFile

_URL = "s3://bucket/models"


class Source:
    """The bytes of one file, and how many of them were read."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.read = 0

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        for at in range(start, end, 1 << 20):
            chunk = self.content[at : min(at + (1 << 20), end)]
            self.read += len(chunk)
            yield chunk


def content_of(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def stored(content: bytes, path: str = "m/1/model.onnx", *, is_stated: bool = True) -> StoredFile:
    sha256 = hashlib.sha256(content).hexdigest()
    return StoredFile(path, len(content), sha256[:8], sha256 if is_stated else "")


def put(cache: ModelCache, content: bytes, path: str = "m/1/model.onnx") -> Tree:
    """Fetched, and in use until the tree is released."""
    file = stored(content, path)
    with cache.tree("m") as building:
        assert building.add(path.removeprefix("m/"), cache.fetch(_URL, file, Source(content).chunks))
        return building.finish()


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "blobs").rglob("*") if path.is_file())


@pytest.mark.parametrize("size", [0, 1, RANGE_BYTES, 2 * RANGE_BYTES + 3])
@pytest.mark.parametrize("is_stated", [True, False])
def test_a_file_is_fetched_once(tmp_path: Path, size: int, is_stated: bool) -> None:
    content = content_of(size)
    source, file = Source(content), stored(content, is_stated=is_stated)
    for _ in range(2):
        cache = ModelCache(tmp_path)
        assert cache.fetch(_URL, file, source.chunks) == hashlib.sha256(content).hexdigest()
    assert source.read == size
    with cache.tree("m") as building:
        assert building.add("1/model.onnx", hashlib.sha256(content).hexdigest())
        tree = building.finish()
    assert (tree.directory / "1" / "model.onnx").read_bytes() == content
    assert not list((tmp_path / "downloads").iterdir())


def test_the_same_bytes_under_two_names_are_one_file(tmp_path: Path) -> None:
    cache, content = ModelCache(tmp_path), content_of(100)
    put(cache, content, "m/1/model.onnx")
    other = StoredFile("m/2/model.onnx", 100, "other")
    assert cache.fetch(_URL, other, Source(content).chunks) == hashlib.sha256(content).hexdigest()
    assert size_of(tmp_path) == 100


def test_the_same_files_are_the_same_directory_for_every_process(tmp_path: Path) -> None:
    content = content_of(100)
    assert put(ModelCache(tmp_path), content).directory == put(ModelCache(tmp_path), content).directory


def test_wrong_bytes_are_found_by_the_stated_digest(tmp_path: Path) -> None:
    content = content_of(1000)
    wrong = bytes([content[0] ^ 1]) + content[1:]
    source = Source(wrong)
    with pytest.raises(ConfigError) as raised:
        ModelCache(tmp_path).fetch(_URL, stored(content), source.chunks)
    text = str(raised.value)
    assert f"{_URL}/m/1/model.onnx" in text
    assert hashlib.sha256(content).hexdigest() in text
    assert hashlib.sha256(wrong).hexdigest() in text
    assert source.read == 2000, "it is fetched a second time, and no more"
    assert not list((tmp_path / "downloads").glob("*.part"))
    assert not size_of(tmp_path)


def test_wrong_bytes_are_found_by_the_md5_of_the_store(tmp_path: Path) -> None:
    content = content_of(1000)
    file = StoredFile("m/1/model.onnx", 1000, "tag", md5=hashlib.md5(content).hexdigest())
    with pytest.raises(ConfigError, match="MD5"):
        ModelCache(tmp_path).fetch(_URL, file, Source(content[::-1]).chunks)
    assert ModelCache(tmp_path).fetch(_URL, file, Source(content).chunks) == hashlib.sha256(content).hexdigest()


def test_a_failed_fetch_keeps_its_ranges(tmp_path: Path) -> None:
    content = content_of(4 * RANGE_BYTES)
    source, file = Source(content), stored(content)

    def failing(start: int, end: int) -> Iterator[bytes]:
        if start == 3 * RANGE_BYTES:
            raise FetchFailed("the store is away")
        yield from source.chunks(start, end)

    cache = ModelCache(tmp_path)
    with pytest.raises(FetchFailed, match="away"):
        cache.fetch(_URL, file, failing)
    (journal,) = (tmp_path / "downloads").glob("*.journal")
    arrived = len(journal.read_bytes().splitlines()) * RANGE_BYTES
    source.read = 0
    cache.fetch(_URL, file, source.chunks)
    assert source.read == len(content) - arrived


def test_a_store_that_no_longer_has_ranges_is_read_as_a_whole(tmp_path: Path) -> None:
    content = content_of(3 * RANGE_BYTES + 1)
    source, counts = Source(content), list[int]()

    def failing(start: int, end: int) -> Iterator[bytes]:
        if start == 2 * RANGE_BYTES:
            raise FetchFailed("the store is away")
        return source.chunks(start, end)

    def without_ranges(start: int, end: int) -> Iterator[bytes]:
        if (start, end) != (0, len(content)):
            raise RangesIgnored("no ranges")
        return source.chunks(start, end)

    with pytest.raises(FetchFailed):
        ModelCache(tmp_path).fetch(_URL, stored(content), failing)
    found = ModelCache(tmp_path).fetch(_URL, stored(content), without_ranges, progress=counts.append)
    assert found == hashlib.sha256(content).hexdigest()
    assert sum(counts) == len(content)


def test_a_range_that_the_disk_lost_is_fetched_again(tmp_path: Path) -> None:
    content = content_of(3 * RANGE_BYTES)
    source, file = Source(content), stored(content, is_stated=False)

    def failing(start: int, end: int) -> Iterator[bytes]:
        if start:
            raise FetchFailed("the store is away")
        yield from source.chunks(start, end)

    cache = ModelCache(tmp_path)
    with pytest.raises(FetchFailed):
        cache.fetch(_URL, file, failing)
    (part,) = (tmp_path / "downloads").glob("*.part")
    (journal,) = (tmp_path / "downloads").glob("*.journal")
    if journal.read_bytes():
        with part.open("r+b") as unfinished:
            unfinished.seek(100)
            unfinished.write(b"lost in a power failure")
    assert cache.fetch(_URL, file, source.chunks) == hashlib.sha256(content).hexdigest()


def test_the_least_recently_used_goes_and_the_limit_holds(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, limit=250)
    contents = [content_of(100, seed) for seed in range(4)]
    for at, content in enumerate(contents[:2]):
        tree = put(cache, content)
        os.utime(tree.directory.parent.with_name(f"{tree.directory.parent.name}.lock"), (at, at))
        tree.release()
    put(cache, contents[0]).release()
    put(cache, contents[2]).release()
    assert size_of(tmp_path) == 200
    assert [bool(cache.holds(_URL, stored(content))) for content in contents] == [True, False, True, False]


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, limit=250)
    used = [put(cache, content_of(100, seed)) for seed in range(2)]
    with pytest.raises(FetchFailed) as raised:
        put(cache, content_of(100, 2))
    assert "--model-cache-bytes" in str(raised.value)
    assert "250" in str(raised.value)
    assert [tree.directory.joinpath("1", "model.onnx").stat().st_size for tree in used] == [100, 100]
    directory = used[0].directory
    # As a version that is unloaded.
    used.clear()
    gc.collect()
    put(cache, content_of(100, 2))
    assert not directory.exists()


def test_a_directory_in_the_making_is_in_use(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, limit=250)
    contents = [content_of(100, seed) for seed in range(3)]
    with cache.tree("m") as building:
        for number, content in enumerate(contents[:2]):
            file = stored(content, f"m/1/{number}")
            assert building.add(f"1/{number}", cache.fetch(_URL, file, Source(content).chunks))
        with pytest.raises(FetchFailed, match="do not fit"):
            cache.fetch(_URL, stored(contents[2]), Source(contents[2]).chunks)
    cache.fetch(_URL, stored(contents[2]), Source(contents[2]).chunks)


def test_a_file_larger_than_the_limit_evicts_nothing(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, limit=250)
    put(cache, content_of(100)).release()
    with pytest.raises(FetchFailed, match="do not fit"):
        put(cache, content_of(300))
    assert size_of(tmp_path) == 100


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as raised:
        ModelCache(tmp_path / "file" / "cache")
    assert "--model-cache" in str(raised.value)


_HOLDER = """
    import hashlib, sys, time
    from pathlib import Path
    from isochrone.models.sources.cache.cache import ModelCache
    from isochrone.models.sources.files import StoredFile
    content = b"x" * 100
    file = StoredFile("m/1/model.onnx", 100, "", hashlib.sha256(content).hexdigest())
    cache = ModelCache(Path(sys.argv[1]))
    with cache.tree("m") as building:
        building.add("1/model.onnx", cache.fetch("s3://b", file, lambda start, end: iter([content])))
        tree = building.finish()
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_HOLDER), str(tmp_path)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        cache = ModelCache(tmp_path, limit=150)
        with pytest.raises(FetchFailed, match="loaded models use 100"):
            put(cache, content_of(100))
        holder.send_signal(signal.SIGKILL)
    put(cache, content_of(100))
    assert size_of(tmp_path) == 100


_WITHOUT_ROOM = """
    import hashlib, sys
    from pathlib import Path
    from isochrone.errors import FetchFailed
    from isochrone.models.sources.cache.cache import ModelCache
    from isochrone.models.sources.files import StoredFile
    content = b"x" * 100_000
    file = StoredFile("m/1/model.onnx", len(content), "", hashlib.sha256(content).hexdigest())
    try:
        ModelCache(Path(sys.argv[1])).fetch("s3://b", file, lambda start, end: iter([content]))
    except FetchFailed as error:
        print(error)
"""


def test_a_disk_without_room_is_a_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: writing fails in the same place."""
    kept = put(ModelCache(tmp_path), content_of(100))

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    command = [sys.executable, "-c", textwrap.dedent(_WITHOUT_ROOM), str(tmp_path)]
    said = subprocess.run(command, preexec_fn=small_files, capture_output=True, text=True, check=True).stdout
    assert "no room for m/1/model.onnx" in said
    assert "it needs 100000 bytes" in said
    assert "--model-cache" in said
    assert (kept.directory / "1" / "model.onnx").read_bytes() == content_of(100)
    content = b"x" * 100_000
    assert ModelCache(tmp_path).fetch(_URL, stored(content), Source(content).chunks)


_LOADER = """
    import hashlib, random, sys
    from pathlib import Path
    from isochrone.errors import ConfigError
    from isochrone.models.sources.cache.cache import ModelCache
    from isochrone.models.sources.files import StoredFile
    choice = random.Random(int(sys.argv[2]))
    cache = ModelCache(Path(sys.argv[1]), limit=5000)
    for _ in range(30):
        content = bytes([choice.randrange(256)]) * 200
        sent = content if choice.random() < 0.8 else b"wrong".ljust(200)
        md5 = hashlib.md5(content).hexdigest()
        file = StoredFile("m/1/model.onnx", 200, md5, md5=md5)
        with cache.tree("m") as building:
            try:
                found = cache.fetch("s3://b", file, lambda start, end: iter([sent]))
            except ConfigError:
                continue
            for folder in range(2, 30):
                building.add_folder(str(folder))
            if building.add("1/model.onnx", found) and choice.random() < 0.5:
                building.finish().release()
"""


def test_processes_that_fetch_finish_and_evict_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Each makes room while others make and remove directories, unfinished files and records."""
    command = [sys.executable, "-c", textwrap.dedent(_LOADER), str(tmp_path)]
    loaders = [subprocess.Popen([*command, str(seed)], stderr=subprocess.PIPE, text=True) for seed in range(4)]
    problems = [loader.communicate()[1] for loader in loaders]
    assert problems == [""] * len(loaders)
    assert size_of(tmp_path) <= 5000


def test_room_and_the_unfinished_file_that_takes_it_are_made_under_one_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = content_of(100)
    sizes: list[int] = []
    released = CacheLayout.locked

    @contextmanager
    def locked(layout: CacheLayout) -> Iterator[None]:
        with released(layout):
            yield
        sizes.extend(path.stat().st_size for path in (tmp_path / "downloads").glob("*.part"))

    monkeypatch.setattr(CacheLayout, "locked", locked)
    ModelCache(tmp_path, limit=150).fetch(_URL, stored(content), Source(content).chunks)
    assert sizes == [100], "after room was made, and gone after the file was kept"


def test_files_that_do_not_fit_together_evict_nothing(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, limit=250)
    put(cache, content_of(100)).release()
    files = [stored(content_of(150, seed), f"m/2/{seed}") for seed in (1, 2)]
    with pytest.raises(FetchFailed, match="300 bytes do not fit"):
        cache.make_room(_URL, files)
    assert size_of(tmp_path) == 100
    cache.make_room(_URL, [*files[:1], *files[:1], stored(content_of(100))])
    assert size_of(tmp_path) == 100


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, limit=150)
    put(cache, content_of(100)).release()
    left = tmp_path / "trees" / "building-1" / "m" / "1"
    left.mkdir(parents=True)
    (tmp_path / "objects" / f".{'0' * 64}.1").write_bytes(b"\xff")
    put(cache, content_of(100, 1))
    assert not left.exists()
    assert size_of(tmp_path) == 100
