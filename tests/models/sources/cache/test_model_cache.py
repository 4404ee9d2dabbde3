"""The cache of one machine: one fetch, resumed, verified, bounded; what is in use stays."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from isochrone.errors import ConfigError, FetchFailed
from isochrone.models.sources.cache import space
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


class FailsAfterTheFirst:
    """A source whose other ranges fail as soon as the first is in the journal."""

    def __init__(self, source: Source, directory: Path) -> None:
        self._source, self._downloads = source, directory / "downloads"

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        if start:
            ends = time.monotonic() + 60
            while not any(path.stat().st_size for path in self._downloads.glob("*.journal")):
                assert time.monotonic() < ends
                time.sleep(0.005)
            raise FetchFailed("the store is away")
        yield from self._source.chunks(start, end)


@pytest.mark.parametrize("is_stated", [True, False])
def test_a_failed_fetch_keeps_its_ranges(tmp_path: Path, is_stated: bool) -> None:
    content = content_of(4 * RANGE_BYTES)
    source, file = Source(content), stored(content, is_stated=is_stated)
    cache = ModelCache(tmp_path)
    with pytest.raises(FetchFailed, match="away"):
        cache.fetch(_URL, file, FailsAfterTheFirst(source, tmp_path).chunks)
    (journal,) = (tmp_path / "downloads").glob("*.journal")
    assert len(journal.read_bytes().splitlines()) == 1
    source.read = 0
    assert cache.fetch(_URL, file, source.chunks) == hashlib.sha256(content).hexdigest()
    assert source.read == 3 * RANGE_BYTES


def test_threads_that_run_end_before_their_files_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = content_of(2 * RANGE_BYTES)
    closed = threading.Event()
    started: list[threading.Thread] = []
    states: list[bool] = []
    start, close = threading.Thread.start, os.close

    def only_one(thread: threading.Thread) -> None:
        if thread.name == "fetching":
            started.append(thread)
            if len(started) > 1:
                raise RuntimeError("can't start new thread")
        start(thread)

    def closing(descriptor: int) -> None:
        if started and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".part"):
            closed.set()
        close(descriptor)

    def slow(first: int, end: int) -> Iterator[bytes]:
        # In vain, unless the file is closed under it.
        states.append(closed.wait(0.5))
        yield content[first:end]

    monkeypatch.setattr(threading.Thread, "start", only_one)
    monkeypatch.setattr(os, "close", closing)
    with pytest.raises(FetchFailed, match="can't start new thread"):
        ModelCache(tmp_path).fetch(_URL, stored(content), slow)
    assert states == [False]
    assert closed.is_set()


class Disk:
    """A small disk: what is free depends on what is in the cache."""

    def __init__(self, directory: Path, size: int) -> None:
        self._directory, self._size = directory, size

    def usage(self, path: object) -> shutil._ntuple_diskusage:
        files = [path.stat() for path in self._directory.rglob("*") if path.is_file()]
        used = sum(min(status.st_size, status.st_blocks * 512) for status in files)
        return shutil._ntuple_diskusage(self._size, used, self._size - used)


def test_a_large_fetch_is_resumed_with_the_default_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = content_of(700_000)
    file = stored(content)
    monkeypatch.setattr(space.shutil, "disk_usage", Disk(tmp_path, 1_000_000).usage)

    def away(start: int, end: int) -> Iterator[bytes]:
        raise FetchFailed("the store is away")

    for _ in range(2):
        with pytest.raises(FetchFailed, match="away"):
            ModelCache(tmp_path).fetch(_URL, file, away)
    assert ModelCache(tmp_path).fetch(_URL, file, Source(content).chunks)


def test_an_unfinished_file_without_blocks_does_not_raise_the_default_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a process that died between the two."""
    content = content_of(900_000)
    file = stored(content)
    monkeypatch.setattr(space.shutil, "disk_usage", Disk(tmp_path, 1_000_000).usage)
    cache = ModelCache(tmp_path)
    (tmp_path / "downloads" / f"{file.sha256}.part").touch()
    os.truncate(tmp_path / "downloads" / f"{file.sha256}.part", len(content))
    with pytest.raises(FetchFailed, match="its limit is 800000 bytes"):
        cache.fetch(_URL, file, Source(content).chunks)


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
    cache = ModelCache(tmp_path)
    with pytest.raises(FetchFailed):
        cache.fetch(_URL, file, FailsAfterTheFirst(source, tmp_path).chunks)
    (part,) = (tmp_path / "downloads").glob("*.part")
    (journal,) = (tmp_path / "downloads").glob("*.journal")
    assert journal.read_bytes()
    with part.open("r+b") as unfinished:
        unfinished.seek(100)
        unfinished.write(b"lost in a power failure")
    source.read = 0
    assert cache.fetch(_URL, file, source.chunks) == hashlib.sha256(content).hexdigest()
    assert source.read == len(content), "the range is not trusted"


def damaged(content: bytes) -> bytes:
    return content[:50] + bytes([content[50] ^ 1]) + content[51:]


@pytest.mark.parametrize("damage", [damaged, lambda content: content[:-1]], ids=["byte", "truncated"])
@pytest.mark.parametrize("is_stated", [True, False])
def test_a_damaged_file_is_fetched_again_after_a_restart(
    tmp_path: Path, damage: Callable[[bytes], bytes], is_stated: bool
) -> None:
    content = content_of(100)
    file, source = stored(content, is_stated=is_stated), Source(content)
    ModelCache(tmp_path).fetch(_URL, file, source.chunks)
    (blob,) = (path for path in (tmp_path / "blobs").rglob("*") if path.is_file())
    write_over(blob, damage(content))
    restarted = ModelCache(tmp_path)
    assert not restarted.holds(_URL, file)
    assert restarted.fetch(_URL, file, source.chunks) == hashlib.sha256(content).hexdigest()
    assert blob.read_bytes() == content
    assert source.read == 200


def test_a_file_that_was_written_is_fetched_again_by_the_same_process(tmp_path: Path) -> None:
    content = content_of(100)
    cache = ModelCache(tmp_path)
    path = put(cache, content).directory / "1" / "model.onnx"
    write_over(path, damaged(content), keep_time=False)
    assert not cache.holds(_URL, stored(content))
    put(cache, content)
    assert path.read_bytes() == content


def test_a_directory_with_a_damaged_file_is_repaired_while_it_is_in_use(tmp_path: Path) -> None:
    content, sha256 = content_of(100), hashlib.sha256(content_of(100)).hexdigest()
    used = put(ModelCache(tmp_path), content)
    path = used.directory / "1" / "model.onnx"
    write_over(path, damaged(content))
    restarted = ModelCache(tmp_path)
    assert not restarted.holds(_URL, stored(content))
    restarted.fetch(_URL, stored(content), Source(content).chunks)
    assert restarted.find_tree("m", {"1/model.onnx": sha256}, ()) is None
    assert put(restarted, content).directory == used.directory
    assert path.read_bytes() == content
    assert restarted.find_tree("m", {"1/model.onnx": sha256}, ()) is not None


def test_the_same_bytes_under_another_name_replace_a_damaged_file(tmp_path: Path) -> None:
    content = content_of(100)
    ModelCache(tmp_path).fetch(_URL, stored(content), Source(content).chunks)
    (blob,) = (path for path in (tmp_path / "blobs").rglob("*") if path.is_file())
    write_over(blob, damaged(content))
    other = StoredFile("m/2/model.onnx", 100, "other")
    ModelCache(tmp_path).fetch(_URL, other, Source(content).chunks)
    assert blob.read_bytes() == content


def write_over(path: Path, content: bytes, *, keep_time: bool = True) -> None:
    """As a disk that loses bytes does."""
    modified = path.stat().st_mtime_ns
    path.chmod(0o600)
    path.write_bytes(content)
    path.chmod(0o400)
    modified += 0 if keep_time else 1_000_000_000
    os.utime(path, ns=(modified, modified))


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
