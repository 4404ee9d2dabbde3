"""Stores that answer a range with status 200: rclone, which sends the range; web servers that send the whole file."""

from __future__ import annotations

import functools
import hashlib
import http.server
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.models.object_store import S3, Served
from isochrone.errors import ConfigError, FetchFailed
from isochrone.models.sources import objects
from isochrone.models.sources.cache.cache import ModelCache
from isochrone.models.sources.cache.ranges import RANGE_BYTES
from isochrone.models.sources.files import StoredFile
from isochrone.models.sources.locations import RepositoryUrl, parse_location
from isochrone.models.sources.manifest import MANIFEST, manifest_of
from isochrone.models.sources.objects import RemoteFiles
from isochrone.models.sources.retries import Patience

_PATH = "m/1/model.onnx"


def url_of(text: str) -> RepositoryUrl:
    url = parse_location(text)
    assert isinstance(url, RepositoryUrl)
    return url


def write(repository: Path, size: int) -> bytes:
    content = random.Random(2).randbytes(size)
    (repository / _PATH).parent.mkdir(parents=True)
    (repository / _PATH).write_bytes(content)
    (repository / "m" / "config.pbtxt").write_bytes(b"x")
    return content


def fetch(files: RemoteFiles, directory: Path) -> tuple[dict[str, bytes], int]:
    """All files by path, and the bytes that were reported as progress."""
    cache, counts = ModelCache(directory), list[int]()
    found = {}
    for file in files.list():
        sha256 = cache.fetch(str(files.url), file, files.reader(file).chunks, progress=counts.append)
        content = cache.read(sha256)
        assert content is not None
        found[file.path] = content
    return found, sum(counts)


def gets_of_model(s3: S3) -> list[str]:
    return [served.range for served in s3.proxy.record.gets if served.path.endswith("model.onnx")]


@pytest.mark.parametrize("size", [1000, RANGE_BYTES, 3 * RANGE_BYTES + 5])
def test_rclone_is_a_store(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3.port}")
    content = write(s3.repository, size)
    assert fetch(RemoteFiles(url_of(s3.url)), tmp_path / "cache") == (
        {_PATH: content, "m/config.pbtxt": b"x"},
        size + 1,
    )


def test_the_store_is_asked_for_ranges_once(s3: S3, tmp_path: Path) -> None:
    s3.proxy.corrects_status = False
    content = write(s3.repository, 2 * RANGE_BYTES)
    files = RemoteFiles(url_of(s3.url))
    assert fetch(files, tmp_path / "first")[0][_PATH] == content
    assert gets_of_model(s3)[-1] == ""
    before = len(gets_of_model(s3))
    assert fetch(files, tmp_path / "second")[0][_PATH] == content
    assert gets_of_model(s3)[before:] == [""]


def test_after_a_failure_the_file_is_read_again_from_its_start(s3: S3) -> None:
    s3.proxy.corrects_status = False
    content = write(s3.repository, 3_000_000)
    files = RemoteFiles(url_of(s3.url))
    (file,) = (each for each in files.list() if each.path == _PATH)
    whole: list[Served] = []

    def plan(served: Served) -> str:
        if served.path.endswith("model.onnx") and not served.range:
            whole.append(served)
            return "truncate" if len(whole) <= 2 else ""
        return ""

    s3.proxy.plan = plan
    assert b"".join(files.reader(file).chunks(0, file.size)) == content
    assert len(whole) == 3


def test_a_file_that_never_arrives_as_a_whole_is_given_up(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "DOWNLOAD", Patience(0.5))
    s3.proxy.corrects_status = False
    write(s3.repository, 3_000_000)
    files = RemoteFiles(url_of(s3.url))
    (file,) = (each for each in files.list() if each.path == _PATH)
    s3.proxy.plan = lambda served: "truncate" if served.path.endswith("model.onnx") else ""
    with pytest.raises(FetchFailed, match=r"cannot fetch m/1/model\.onnx"):
        list(files.reader(file).chunks(0, file.size))


def test_wrong_bytes_are_found(s3: S3, tmp_path: Path) -> None:
    s3.proxy.corrects_status = False
    write(s3.repository, 2 * RANGE_BYTES)
    s3.proxy.plan = lambda served: "wrong byte" if served.path.endswith("model.onnx") else ""
    with pytest.raises(ConfigError, match="MD5"):
        fetch(RemoteFiles(url_of(s3.url)), tmp_path / "cache")


@contextmanager
def web_server(directory: Path) -> Iterator[str]:
    """Python's own, which ignores ``Range``."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *words: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Clients go away when they see the status."""

    with Server(("127.0.0.1", 0), functools.partial(Handler, directory=str(directory))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("size", [1000, 2 * RANGE_BYTES + 5])
def test_a_web_server_may_send_the_whole_file(tmp_path: Path, size: int) -> None:
    content = write(tmp_path / "models", size)
    (tmp_path / "models" / MANIFEST).write_bytes(manifest_of(tmp_path / "models"))
    with web_server(tmp_path / "models") as address:
        found, progress = fetch(RemoteFiles(url_of(address)), tmp_path / "cache")
        assert (found[_PATH], progress) == (content, size + 1)
        (tmp_path / "models" / _PATH).write_bytes(content[::-1])
        with pytest.raises(ConfigError, match="SHA-256"):
            fetch(RemoteFiles(url_of(address)), tmp_path / "other")
        shorter = StoredFile(_PATH, size - 1, "", hashlib.sha256(content[:-1]).hexdigest())
        with pytest.raises(ConfigError, match=f"size: expected {size - 1} bytes, given {size}"):
            list(RemoteFiles(url_of(address)).reader(shorter).chunks(0, size - 1))
