"""A real S3 server, listed and read, with faults on the way."""

from __future__ import annotations

import hashlib
import random
import sys
import threading
from pathlib import Path

import obstore
import obstore.store
import pytest

from bench.models.object_store import S3, FaultyProxy, Plan, Served, rclone
from isochrone.errors import ConfigError, FetchFailed, NotFound, Unavailable
from isochrone.models.sources import objects
from isochrone.models.sources.files import StoredFile
from isochrone.models.sources.locations import RepositoryUrl, parse_location
from isochrone.models.sources.manifest import MANIFEST, manifest_of
from isochrone.models.sources.objects import RemoteFiles
from isochrone.models.sources.retries import Patience

_SIZE = 3_000_000


def url_of(text: str) -> RepositoryUrl:
    url = parse_location(text)
    assert isinstance(url, RepositoryUrl)
    return url


@pytest.fixture
def content(s3: S3) -> bytes:
    made = random.Random(1).randbytes(_SIZE)
    (s3.repository / "m" / "1").mkdir(parents=True)
    (s3.repository / "m" / "1" / "model.onnx").write_bytes(made)
    (s3.repository / "m" / "config.pbtxt").write_bytes(b"x")
    return made


@pytest.fixture
def files(s3: S3, content: bytes) -> RemoteFiles:
    return RemoteFiles(url_of(s3.url))


def fetched(files: RemoteFiles, file: StoredFile) -> bytes:
    return b"".join(files.reader(file).chunks(0, file.size))


def only(fault: str, *numbers: int) -> Plan:
    """This fault for the GETs of the model's file with these numbers, counted among themselves."""
    seen: list[Served] = []

    def plan(served: Served) -> str:
        if not served.path.endswith("model.onnx"):
            return ""
        seen.append(served)
        return fault if len(seen) in numbers else ""

    return plan


def test_files_are_listed_with_their_md5(files: RemoteFiles, content: bytes) -> None:
    model, config = sorted(files.list(), key=lambda file: -file.size)
    assert (model.path, model.size, model.md5) == ("m/1/model.onnx", _SIZE, hashlib.md5(content).hexdigest())
    assert config.path == "m/config.pbtxt"
    assert files.list("m") == files.list()
    assert files.list("other") == []


def test_a_manifest_is_the_listing(s3: S3, files: RemoteFiles, content: bytes) -> None:
    (s3.repository / MANIFEST).write_bytes(manifest_of(s3.repository))
    (s3.repository / "m" / "1" / "later").write_bytes(b"not in the manifest")
    assert {file.path: file.sha256 for file in files.list("m")} == {
        "m/1/model.onnx": hashlib.sha256(content).hexdigest(),
        "m/config.pbtxt": hashlib.sha256(b"x").hexdigest(),
    }


@pytest.mark.parametrize("fault", ["slow down", "truncate", "reset"])
def test_faults_that_pass_are_repeated(s3: S3, files: RemoteFiles, content: bytes, fault: str) -> None:
    (file,) = (each for each in files.list() if each.size == _SIZE)
    s3.proxy.plan = only(fault, 1, 2)
    assert fetched(files, file) == content
    gets = [served.range for served in s3.proxy.record.gets if served.path.endswith("model.onnx")]
    assert len(gets) == 3
    if fault == "truncate":
        assert gets[1] != gets[0], "what has arrived is not requested again"


def test_a_server_that_hangs_is_given_up_and_asked_again(
    s3: S3, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(objects._CLIENT, "read_timeout", "300ms")
    files = RemoteFiles(url_of(s3.url))
    (file,) = (each for each in files.list() if each.size == _SIZE)
    s3.proxy.plan = only("hang", 1)
    assert fetched(files, file) == content


def test_throttling_that_does_not_end_is_reported(
    s3: S3, files: RemoteFiles, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "LISTING", Patience(0.5))
    s3.proxy.plan = lambda served: "slow down"
    with pytest.raises(FetchFailed) as raised:
        files.list()
    assert "s3://bucket/models: cannot list its files" in str(raised.value)
    assert "503 Service Unavailable: SlowDown: Please reduce your request rate." in str(raised.value)
    assert f"({MANIFEST} is optional and read first)" in str(raised.value)
    assert "attempts in" in str(raised.value)


def test_a_store_that_is_away_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "LISTING", Patience(0.3))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(FetchFailed) as raised:
        RemoteFiles(url_of("s3://bucket/models")).list()
    assert "AWS_ENDPOINT_URL" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_wrong_credentials_are_reported_at_once(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(ConfigError) as raised:
        RemoteFiles(url_of(s3.url)).list()
    assert "403 Forbidden: SignatureDoesNotMatch: " in str(raised.value)
    assert "<" not in str(raised.value)
    assert "AWS_ACCESS_KEY_ID" in str(raised.value)
    assert len(s3.proxy.record.gets) == 1


def test_a_bucket_that_does_not_exist_is_reported_at_once(s3: S3) -> None:
    with pytest.raises(ConfigError) as raised:
        RemoteFiles(url_of("s3://nobucket/models")).list()
    assert "NoSuchBucket" in str(raised.value)


def test_an_endpoint_without_tls_needs_a_permission(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(ConfigError, match="AWS_ALLOW_HTTP=true"):
        RemoteFiles(url_of(s3.url)).list()


def test_an_endpoint_that_answers_without_tls_is_reported_at_once(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{s3.port}")
    with pytest.raises(ConfigError, match=r"the server answers without TLS.*AWS_ALLOW_HTTP=true"):
        RemoteFiles(url_of(s3.url)).list()


def test_a_manifest_that_disagrees_with_a_file_is_named(s3: S3, files: RemoteFiles, content: bytes) -> None:
    (s3.repository / MANIFEST).write_bytes(manifest_of(s3.repository))
    (file,) = (each for each in files.list() if each.size == _SIZE)
    stored = s3.repository / "m" / "1" / "model.onnx"
    stored.write_bytes(content + b"more")
    with pytest.raises(ConfigError, match=rf"given {_SIZE + 4}: {MANIFEST} disagrees: .*isochrone repository index"):
        fetched(files, file)
    stored.unlink()
    with pytest.raises(ConfigError, match=rf"the file that {MANIFEST} names.*isochrone repository index"):
        fetched(files, file)


def test_a_missing_object_is_not_found(files: RemoteFiles) -> None:
    with pytest.raises(NotFound):
        files.read("m/nothing")


def test_an_object_that_was_replaced_since_the_listing_is_not_mixed(s3: S3, files: RemoteFiles, content: bytes) -> None:
    (file,) = (each for each in files.list() if each.size == _SIZE)
    (s3.repository / "m" / "1" / "model.onnx").write_bytes(content[::-1])
    with pytest.raises(ConfigError, match="replaced"):
        fetched(files, file)


@pytest.mark.parametrize("scheme", ["gs", "az"])
@pytest.mark.parametrize(("content", "named"), [(b"longer than before", "size"), (b"after ", "replaced")])
def test_a_replaced_object_is_found_in_every_store(
    monkeypatch: pytest.MonkeyPatch, scheme: str, content: bytes, named: str
) -> None:
    store = obstore.store.MemoryStore()
    monkeypatch.setattr(objects, "_open", lambda url: store)
    obstore.put(store, "m/1/model.onnx", b"before")
    files = RemoteFiles(url_of(f"{scheme}://bucket"))
    (file,) = files.list()
    assert fetched(files, file) == b"before"
    obstore.put(store, "m/1/model.onnx", content)
    with pytest.raises(ConfigError, match=named):
        fetched(files, file)


def test_a_file_of_another_size_than_stated_is_not_fetched(s3: S3, files: RemoteFiles, content: bytes) -> None:
    file = StoredFile("m/1/model.onnx", _SIZE - 1, "", hashlib.sha256(content[:-1]).hexdigest())
    with pytest.raises(ConfigError, match=f"size: expected {_SIZE - 1} bytes, given {_SIZE}"):
        fetched(files, file)


def test_a_stop_ends_the_waits(s3: S3, content: bytes) -> None:
    stopping = threading.Event()
    files = RemoteFiles(url_of(s3.url), stopping)

    def plan(served: Served) -> str:
        stopping.set()
        return "slow down"

    s3.proxy.plan = plan
    with pytest.raises(Unavailable, match="stopping"):
        files.list()


def test_a_web_server_needs_a_manifest(tmp_path: Path) -> None:
    made = random.Random(1).randbytes(_SIZE)
    repository = tmp_path / "files" / "models"
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "1" / "model.onnx").write_bytes(made)
    with rclone(tmp_path, "http", tmp_path / "files", "--dir-cache-time", "0s") as (_, port):
        files = RemoteFiles(url_of(f"http://127.0.0.1:{port}/models"))
        with pytest.raises(ConfigError) as raised:
            files.list()
        assert "isochrone repository index" in str(raised.value)
        (repository / MANIFEST).write_bytes(manifest_of(repository))
        (file,) = files.list()
        assert file.sha256 == hashlib.sha256(made).hexdigest()
        assert fetched(files, file) == made
        proxy = FaultyProxy(port)
        try:
            broken = RemoteFiles(url_of(f"http://127.0.0.1:{proxy.port}/models"))
            proxy.plan = only("truncate", 1)
            assert fetched(broken, file) == made
        finally:
            proxy.close()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError) as raised:
        RemoteFiles(url_of("s3://bucket/models")).list()
    assert str(raised.value) == ("s3://bucket/models needs the package obstore: pip install 'isochrone[object-stores]'")
