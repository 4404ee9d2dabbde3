"""Models of a repository in an object store: scanned, fetched, described."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from model_files import IDENTITY
from tritonclient.grpc import model_config_pb2

from bench.models.object_store import S3
from isochrone.errors import ConfigError, FetchFailed, IsochroneError, NotFound
from isochrone.models import file_stamp
from isochrone.models.repository import digest as digest_module
from isochrone.models.repository.description import ModelDescription
from isochrone.models.repository.digest import DigestMemory, digest
from isochrone.models.repository.listings import Listings
from isochrone.models.repository.repository import Repository
from isochrone.models.sources import objects
from isochrone.models.sources.cache import trees
from isochrone.models.sources.cache.cache import ModelCache
from isochrone.models.sources.checksums import CHECKSUMS
from isochrone.models.sources.failures import CredentialsRefused
from isochrone.models.sources.locations import parse_location
from isochrone.models.sources.manifest import MANIFEST, manifest_of
from isochrone.models.sources.retries import Patience


def write(s3: S3, name: str = "m", versions: Sequence[int] = (1, 2, 3), config: str = IDENTITY) -> Path:
    (s3.repository / name).mkdir()
    for version in versions:
        (s3.repository / name / str(version)).mkdir()
        (s3.repository / name / str(version) / "model.py").write_text(f"class Model: ...  # {version}\n")
    (s3.repository / name / "config.pbtxt").write_text(config)
    return s3.repository / name


@pytest.fixture
def repository(s3: S3, tmp_path: Path) -> Repository:
    return Repository([parse_location(s3.url)], cache=ModelCache(tmp_path / "cache"))


def fetched_versions(s3: S3) -> set[str]:
    return {path.rsplit("/", 2)[1] for path in s3.proxy.record.bytes if path.endswith("model.py")}


def digests(description: ModelDescription) -> dict[int, str]:
    return {
        number: digest(description.of_version(number).config, directory)
        for number, directory in description.versions.items()
    }


def test_a_scan_finds_models_and_changes(s3: S3, repository: Repository) -> None:
    directory = write(s3)
    write(s3, "other", (7,))
    (s3.repository / "README.md").write_text("no model")
    before = repository.scan()
    assert {name: entry.versions for name, entry in before.items()} == {"m": (1, 2, 3), "other": (7,)}
    assert repository.scan() == before
    (directory / "2" / "model.py").write_text("class Model: ...  # changed\n")
    after = repository.scan()
    changed = {v for v in (1, 2, 3) if after["m"].version_fingerprints[v] != before["m"].version_fingerprints[v]}
    assert changed == {2}
    assert after["other"] == before["other"]


def test_only_the_versions_that_are_served_are_fetched(s3: S3, repository: Repository) -> None:
    write(s3)
    assert list(repository.read("m").versions) == [3]
    assert fetched_versions(s3) == {"3"}
    assert list(repository.read("m", versions=(1,)).versions) == [1]
    assert fetched_versions(s3) == {"1", "3"}


def test_digests_are_those_of_the_same_files_on_disk(s3: S3, repository: Repository) -> None:
    write(s3)
    local = Repository([s3.repository]).read("m", versions=(1, 2))
    assert digests(repository.read("m", versions=(1, 2))) == digests(local)


def test_a_missing_version_is_named_with_those_that_are_there(s3: S3, repository: Repository) -> None:
    write(s3)
    with pytest.raises(ConfigError, match=r"present: 1, 2, 3"):
        repository.read("m", versions=(9,))
    with pytest.raises(NotFound):
        repository.read("nothing")


def test_errors_name_the_url(s3: S3, repository: Repository) -> None:
    write(s3, config='backend: "python"\nmax_batch_size: "x"\n')
    with pytest.raises(ConfigError) as raised:
        repository.read("m")
    assert str(raised.value).startswith("s3://bucket/models/m/config.pbtxt")


def test_errors_of_a_load_name_the_url(s3: S3, repository: Repository) -> None:
    write(s3)
    assert repository.read("m").config_source == "s3://bucket/models/m/config.pbtxt"


def test_a_disk_of_the_cache_that_fails_is_an_error_of_the_model(
    s3: S3, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(s3)

    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source))

    monkeypatch.setattr(trees.os, "link", full)
    with pytest.raises(FetchFailed) as raised:
        repository.read("m")
    assert str(raised.value).startswith("s3://bucket/models/m: cannot be kept in the model cache: No space left")


def test_an_ensemble_has_an_empty_version(s3: S3, repository: Repository) -> None:
    write(s3, "step")
    write(
        s3,
        "both",
        (),
        'platform: "ensemble"\n'
        'input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }\noutput { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }\n'
        'ensemble_scheduling { step { model_name: "step" model_version: -1'
        ' input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }\n',
    )
    with pytest.raises(ConfigError, match=r"no empty folders: .*both/1/\.keep"):
        repository.read("both")
    (s3.repository / "both" / "1").mkdir()
    (s3.repository / MANIFEST).write_bytes(manifest_of(s3.repository))
    assert repository.steps("both") == ("step",)
    assert list(repository.read("both").versions) == [1]


def test_one_name_in_two_repositories_is_a_problem(s3: S3, tmp_path: Path) -> None:
    write(s3)
    (tmp_path / "local" / "m" / "1").mkdir(parents=True)
    both = Repository([tmp_path / "local", parse_location(s3.url)], cache=ModelCache(tmp_path / "cache"))
    problem = both.scan()["m"].problem
    assert problem is not None
    assert "s3://bucket/models/m" in str(problem)
    with pytest.raises(ConfigError, match="one directory of this name"):
        both.read("m")


def test_sums_beside_the_files_are_checked(s3: S3, repository: Repository) -> None:
    directory = write(s3)
    good = hashlib.sha256((directory / "3" / "model.py").read_bytes()).hexdigest()
    (directory / "3" / CHECKSUMS).write_text(f"{good}  model.py\n")
    assert (repository.read("m").versions[3] / CHECKSUMS).is_file()
    other = hashlib.sha256(b"other").hexdigest()
    (directory / "2" / CHECKSUMS).write_text(f"{other}  model.py\n")
    with pytest.raises(ConfigError) as raised:
        repository.read("m", versions=(2,))
    assert f"s3://bucket/models/m/2/model.py: SHA-256: expected {other}" in str(raised.value)


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_wrong_byte_is_found_and_the_file_is_named(s3: S3, repository: Repository, has_manifest: bool) -> None:
    write(s3)
    if has_manifest:
        (s3.repository / MANIFEST).write_bytes(manifest_of(s3.repository))
    s3.proxy.plan = lambda served: "wrong byte" if served.path.endswith("model.py") else ""
    with pytest.raises(ConfigError) as raised:
        repository.read("m")
    assert "s3://bucket/models/m/3/model.py" in str(raised.value)
    assert "wrong bytes" in str(raised.value)
    s3.proxy.plan = lambda served: ""
    assert list(repository.read("m").versions) == [3]


def test_a_manifest_that_names_a_missing_file_is_an_error(s3: S3, repository: Repository) -> None:
    directory = write(s3)
    (s3.repository / MANIFEST).write_bytes(manifest_of(s3.repository))
    (directory / "3" / "model.py").unlink()
    with pytest.raises(ConfigError, match=rf"m/3/model\.py: expected the file that {MANIFEST} names"):
        repository.read("m")


def test_while_the_store_is_away_what_was_fetched_is_read_again(
    s3: S3, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(s3)
    before = digests(repository.read("m"))
    monkeypatch.setattr(objects, "LISTING", Patience(0.2))
    monkeypatch.setattr(objects, "DOWNLOAD", Patience(0.2))
    s3.proxy.plan = lambda served: "slow down"
    restarted = Repository([parse_location(s3.url)], cache=ModelCache(tmp_path / "cache"))
    assert digests(restarted.read("m")) == before
    with pytest.raises(FetchFailed, match=r"m/1/model\.py"):
        restarted.read("m", versions=(1,))


def test_a_damaged_file_of_the_cache_is_not_loaded(
    s3: S3, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(s3)
    described = repository.read("m")
    before = digests(described)
    path = described.versions[3] / "model.py"
    content = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(content[::-1])
    monkeypatch.setattr(objects, "DOWNLOAD", Patience(0.2))
    s3.proxy.plan = lambda served: "slow down" if served.path.endswith("model.py") else ""
    with pytest.raises(FetchFailed, match=r"m/3/model\.py"):
        Repository([parse_location(s3.url)], cache=ModelCache(tmp_path / "cache")).read("m")
    s3.proxy.plan = lambda served: ""
    restarted = Repository([parse_location(s3.url)], cache=ModelCache(tmp_path / "cache"))
    assert digests(restarted.read("m")) == before


def test_credentials_that_are_refused_leave_what_was_fetched(
    s3: S3, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(s3)
    before, scanned = digests(repository.read("m")), repository.scan()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "expired")
    restarted = Repository([parse_location(s3.url)], cache=ModelCache(tmp_path / "cache"))
    assert restarted.scan() == scanned
    assert digests(restarted.read("m")) == before
    with pytest.raises(ConfigError, match="403"):
        restarted.read("m", versions=(1,))


def test_session_credentials_that_expired_leave_what_was_fetched(
    s3: S3, repository: Repository, tmp_path: Path
) -> None:
    """S3 answers them with status 400."""
    write(s3)
    before, scanned = digests(repository.read("m")), repository.scan()
    s3.proxy.plan = lambda served: "expired"
    restarted = Repository([parse_location(s3.url)], cache=ModelCache(tmp_path / "cache"))
    assert restarted.scan() == scanned
    assert digests(restarted.read("m")) == before
    with pytest.raises(CredentialsRefused, match="ExpiredToken"):
        restarted.read("m", versions=(1,))


@pytest.mark.parametrize("fault", ["slow down", "refuse"])
def test_a_store_that_is_away_does_not_take_local_models_with_it(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(objects, "LISTING", Patience(0.2))
    (tmp_path / "local" / "here" / "1").mkdir(parents=True)
    (tmp_path / "local" / "here" / "1" / "model.py").write_text("class Model: ...\n")
    (tmp_path / "local" / "here" / "config.pbtxt").write_text(IDENTITY)
    s3.proxy.plan = lambda served: fault
    both = Repository([tmp_path / "local", parse_location(s3.url)], cache=ModelCache(tmp_path / "cache"))
    assert list(both.read("here").versions) == [1]
    with pytest.raises(IsochroneError, match="s3://bucket/models"):
        both.read("there")


@pytest.mark.parametrize("stray", ["bad//model.py", "bad/1/../model.py", "bad/./model.py", "bad/1//"])
def test_a_key_that_cannot_be_a_path_fails_its_own_model_alone(s3: S3, repository: Repository, stray: str) -> None:
    write(s3, "good")
    write(s3, "bad")
    before = repository.scan()
    s3.proxy.stray_keys = [f"models/{stray}"]
    after = repository.scan()
    assert after["good"] == before["good"]
    assert stray in str(after["bad"].problem)
    assert list(repository.read("good").versions) == [3]
    with pytest.raises(ConfigError, match=re.escape(stray)):
        repository.read("bad")
    listing = Listings().of(parse_location(s3.url))
    assert sorted(listing.models()) == ["bad", "good"]
    assert listing.versions("good") == (1, 2, 3)
    with pytest.raises(ConfigError, match=re.escape(stray)):
        listing.versions("bad")


def test_a_key_outside_models_that_cannot_be_a_path_is_named(s3: S3, repository: Repository, tmp_path: Path) -> None:
    write(s3, "good")
    s3.proxy.stray_keys = ["models//notes"]
    with pytest.raises(ConfigError, match="models//"):
        repository.scan()
    assert list(repository.read("good").versions) == [3]
    s3.proxy.stray_keys = []
    before = repository.scan()
    s3.proxy.stray_keys = ["models//notes"]
    assert Repository([parse_location(s3.url)], cache=ModelCache(tmp_path / "cache")).scan() == before


def test_a_store_that_is_away_is_waited_for_once(
    s3: S3, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "LISTING", Patience(0.2))
    s3.proxy.plan = lambda served: "slow down"
    with pytest.raises(FetchFailed, match="attempts in"):
        repository.read("m")
    asked = len(s3.proxy.record.gets)
    with pytest.raises(FetchFailed, match="attempts in"):
        repository.read("other")
    assert len(s3.proxy.record.gets) == asked


def test_the_progress_is_reported(s3: S3, repository: Repository) -> None:
    directory = write(s3)
    (directory / "3" / "weights").write_bytes(os.urandom(20_000_000))
    said: list[str] = []
    repository.read("m", report=said.append)
    assert said[0].startswith("fetching ")
    assert " of 20.0 MB" in said[-1]


def test_a_listing_needs_no_cache_and_fetches_no_model(s3: S3) -> None:
    write(s3)
    listing = Listings().of(parse_location(s3.url))
    assert listing.models() == ["m"]
    assert listing.versions("m") == (1, 2, 3)
    assert listing.versions("other") is None
    assert listing.read("m", "config.pbtxt") == IDENTITY.encode()
    assert listing.read("m", "labels.txt") is None
    assert listing.has_any("m", "3", ["model.py"])
    assert not listing.has_any("m", "3", ["model.onnx"])
    assert not fetched_versions(s3)


def test_namespaces_need_directories(s3: S3, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--model-namespacing"):
        Repository([parse_location(s3.url)], namespacing=True, cache=ModelCache(tmp_path / "cache"))


def test_a_second_load_hashes_nothing(s3: S3, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled = 'output { name: "L" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" }\n'
    directory = write(s3, config=IDENTITY + labelled)
    (directory / "labels.txt").write_text("one\n")
    hashed: list[Path] = []

    def counted(config: model_config_pb2.ModelConfig, version: Path) -> str:
        hashed.append(version)
        return digest(config, version)

    monkeypatch.setattr(digest_module, "digest", counted)
    monkeypatch.setattr(file_stamp, "_SETTLED_NS", 0)
    memory = DigestMemory()
    for _ in range(3):
        description = repository.read("m")
        repository.steps("m")
        memory.digest(description.of_version(3).config, description.versions[3])
    assert hashed == [description.versions[3]]


def test_a_version_that_cannot_fit_evicts_nothing(s3: S3, tmp_path: Path) -> None:
    write(s3, "small")
    directory = write(s3, "large", (1,))
    for number in range(2):
        (directory / "1" / f"weights{number}").write_bytes(bytes([number]) * 60_000)
    repository = Repository([parse_location(s3.url)], cache=ModelCache(tmp_path / "cache", 61_000))
    assert repository.read("small").versions
    blobs = set((tmp_path / "cache" / "blobs").rglob("*"))
    with pytest.raises(FetchFailed, match="do not fit"):
        repository.read("large")
    assert blobs <= set((tmp_path / "cache" / "blobs").rglob("*"))
    assert not [path for path in s3.proxy.record.bytes if "weights" in path]
