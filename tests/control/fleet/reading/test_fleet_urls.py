"""Repositories at URLs in fleet.yaml: checked, passed to the workers, looked up in a real store."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.models.object_store import S3, s3_server
from isochrone.control.fleet.derived.locations import repositories_by_worker
from isochrone.control.fleet.derived.processes import processes
from isochrone.control.fleet.reading.catalog import available_versions, catalog
from isochrone.control.fleet.reading.file import FleetFile, lost_versions, read_file
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.fleet.reading.places import places
from isochrone.control.state.records import Assignment, FleetRecord
from isochrone.models.sources import objects
from isochrone.models.sources.retries import Patience
from isochrone.settings.problems import SettingsError

PAGE = Path(__file__).resolve().parents[4] / "docs" / "model-sources.md"

TEXT = """
name: a
repository: s3://bucket/models
pools:
  cpu: {workers: 1}
  edge: {workers: 1, repository: [./local, "https://host/models"]}
models:
  detector: {source: "gs://other/detector", pools: [cpu]}
"""


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """With the models ``first`` (1, 2, 10) and ``both``, an ensemble of it."""
    with s3_server(tmp_path / "store") as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        for version in (1, 2, 10):
            (store.repository / "first" / str(version)).mkdir(parents=True)
            (store.repository / "first" / str(version) / "model.onnx").write_bytes(b"x")
        (store.repository / "first" / "config.pbtxt").write_text('platform: "onnxruntime_onnx"\n')
        (store.repository / "both" / "1").mkdir(parents=True)
        (store.repository / "both" / "1" / ".keep").touch()
        (store.repository / "both" / "config.pbtxt").write_text(
            'platform: "ensemble"\nensemble_scheduling { step [ { model_name: "first" } ] }\n'
        )
        yield store


def wrong(text: str, directory: Path) -> str:
    with pytest.raises(SettingsError) as raised:
        read_file(text, "fleet.yaml", directory)
    return str(raised.value)


def test_urls_reach_the_workers_as_they_are(tmp_path: Path) -> None:
    fleet = parse_fleet(TEXT, "fleet.yaml", tmp_path)
    assert repositories_by_worker(fleet, tmp_path) == {
        "cpu-1": ("s3://bucket/models", "gs://other"),
        "edge-1": (str(tmp_path / "local"), "https://host/models"),
    }
    arguments = processes(fleet, tmp_path)["cpu-1"].arguments
    assert arguments[:3] == ("serve", "s3://bucket/models", "gs://other")


def test_a_url_is_a_place_that_a_far_caller_may_not_add(tmp_path: Path) -> None:
    fleet = parse_fleet(TEXT, "fleet.yaml", tmp_path)
    assert {"repository s3://bucket/models", "repository gs://other", "repository https://host/models"} <= set(
        places(fleet, tmp_path)
    )


def test_a_wrong_url_is_rejected_by_its_key(tmp_path: Path) -> None:
    text = wrong("name: a\nrepository: ftp://host/models\n", tmp_path)
    assert "fleet.yaml:2: repository" in text
    assert "s3://bucket/prefix" in text
    text = wrong("name: a\npools: {cpu: {repository: 's3://key:word@bucket'}}\n", tmp_path)
    assert "pools.cpu.repository" in text
    assert "word" not in text


def test_versions_stages_and_files_are_looked_up_without_the_models_bytes(s3: S3, tmp_path: Path) -> None:
    text = f"name: a\nrepository: {s3.url}\nmodels: {{both: {{}}}}\n"
    file = read_file(text, "fleet.yaml", tmp_path)
    assert file.versions == {"both": "1", "first": "10"}
    assert file.stages == {"both": ("first",), "first": ()}
    assert available_versions(file.fleet, "first", tmp_path) == [1, 2, 10]
    assert not [get for get in s3.proxy.record.gets if get.path.endswith("model.onnx")]


def test_the_models_of_a_store_are_all_served(s3: S3, tmp_path: Path) -> None:
    fleet = parse_fleet(f"name: a\nrepository: {s3.url}\n", "fleet.yaml", tmp_path)
    assert set(catalog(fleet, tmp_path)) == {"first", "both"}


def test_a_source_is_a_model_of_another_repository(s3: S3, tmp_path: Path) -> None:
    (tmp_path / "models" / "second" / "1").mkdir(parents=True)
    text = f"name: a\nmodels: {{first: {{source: {s3.url}/first}}}}\n"
    assert read_file(text, "fleet.yaml", tmp_path).versions == {"first": "10"}
    text = f"name: a\nmodels: {{third: {{source: {s3.url}/third}}}}\n"
    assert f"models.third.source: expected a directory at {s3.url}/third" in wrong(text, tmp_path)


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ("{first: {version: 3}}", "a version of first that is there (1, 2, 10)"),
        ("{frist: {}}", "first"),
    ],
)
def test_what_is_not_in_the_store_is_named(s3: S3, tmp_path: Path, models: str, expected: str) -> None:
    assert expected in wrong(f"name: a\nrepository: {s3.url}\nmodels: {models}\n", tmp_path)


def test_a_version_without_its_file_is_named_by_its_url(s3: S3, tmp_path: Path) -> None:
    (s3.repository / "first" / "10" / "model.onnx").rename(s3.repository / "first" / "10" / "weights")
    text = wrong(f"name: a\nrepository: {s3.url}\n", tmp_path)
    assert f"model.onnx in {s3.url}/first/10, given no such file" in text


def test_a_store_that_is_away_is_reported_once_with_key_and_url(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "LISTING", Patience(0.3))
    s3.proxy.plan = lambda served: "slow down"
    text = wrong(f"name: a\nrepository: {s3.url}\nmodels: {{first: {{}}, both: {{}}}}\n", tmp_path)
    assert text.count("fleet.yaml") == 1
    assert f"fleet.yaml:2: repository: expected a repository that can be listed at {s3.url}" in text
    assert "AWS_ENDPOINT_URL" in text


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    text = wrong("name: a\nrepository: s3://bucket/models\n", tmp_path)
    needed = "the package obstore, which s3://bucket/models needs: pip install 'isochrone[object-stores]'"
    assert f"fleet.yaml:2: repository: expected {needed}, given none" in text


def _applied(file: FleetFile) -> FleetRecord:
    return FleetRecord(1, file.text, file.fleet.model_dump(mode="json", by_alias=True), file.directory)


def test_versions_that_a_new_repository_lacks_are_found_by_listing(s3: S3, tmp_path: Path) -> None:
    for version in (2, 10, 11):
        (tmp_path / "models" / "first" / str(version)).mkdir(parents=True)
        (tmp_path / "models" / "first" / str(version) / "model.onnx").write_bytes(b"x")
    text = "name: a\nrepository: {}\nmodels: {{first: {{version: 10}}}}\n"
    before = read_file(text.format("./models"), "fleet.yaml", tmp_path)
    after = read_file(text.format(s3.url), "fleet.yaml", tmp_path)
    pools = tuple(after.fleet.pools)
    there, missing = (Assignment(version, pools=pools, digest="d") for version in ("10", "11"))
    assert lost_versions(after, _applied(before), {"first": there}) == []
    (found,) = lost_versions(after, _applied(before), {"first": missing})
    assert f"is not in {s3.url}" in found
    assert not [get for get in s3.proxy.record.gets if get.path.endswith("model.onnx")]


def test_the_fleet_of_the_page_is_valid(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert parse_fleet(shown, "fleet.yaml", tmp_path).repository == ("s3://bucket/models",)
