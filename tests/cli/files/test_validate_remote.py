"""``isochrone validate`` of a repository in a real store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.models.object_store import S3, s3_server
from isochrone.cli.main import app

_ENSEMBLE = 'platform: "ensemble"\nensemble_scheduling { step [ { model_name: "first" } ] }\n'


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """With the models ``first`` (1, 2) and ``both``, an ensemble of it."""
    with s3_server(tmp_path / "store") as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        for version in (1, 2):
            (store.repository / "first" / str(version)).mkdir(parents=True)
            (store.repository / "first" / str(version) / "model.onnx").write_bytes(b"x")
        (store.repository / "first" / "config.pbtxt").write_text('platform: "onnxruntime_onnx"\n')
        (store.repository / "both" / "1").mkdir(parents=True)
        (store.repository / "both" / "1" / ".keep").touch()
        (store.repository / "both" / "config.pbtxt").write_text(_ENSEMBLE)
        yield store


def validate(*words: str) -> Any:
    return CliRunner().invoke(app, ["validate", *words])


def test_a_repository_is_listed_and_no_model_fetched(s3: S3) -> None:
    result = validate(s3.url)
    assert result.exit_code == 0, result.output
    assert f"repository {s3.url} is valid; models: both 1, first 1, 2" in result.output
    assert not [get for get in s3.proxy.record.gets if get.path.endswith("model.onnx")]


def test_every_error_is_named_with_its_url(s3: S3) -> None:
    (s3.repository / "first" / "2" / "model.onnx").rename(s3.repository / "first" / "2" / "weights")
    (s3.repository / "both" / "1" / ".keep").unlink()
    (s3.repository / "both" / "config.pbtxt").write_text('name: "other"\n' + _ENSEMBLE.replace('"first"', '"gone"'))
    (s3.repository / "third").mkdir()
    (s3.repository / "third" / "config.pbtxt").write_text("max_batch_size: many")
    result = validate(s3.url)
    assert result.exit_code == 1
    for expected in (
        f"{s3.url}/first/2: model file: expected model.onnx",
        f"{s3.url}/both: versions: expected at least one version directory",
        "both/1/.keep",
        f"{s3.url}/both/config.pbtxt: name: expected 'both'",
        f"{s3.url}/both/config.pbtxt: ensemble_scheduling: expected steps of models that are there, given gone",
        f"{s3.url}/third/config.pbtxt:1:17: max_batch_size",
    ):
        assert expected in result.output
    assert len(json.loads(validate(s3.url, "--json").output)["problems"]) == 5


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://nobucket/models", "NoSuchBucket"),
        ("s3://bucket/modelz", "s3://bucket/modelz: models: expected at least one model in Triton's layout"),
        ("s3:/bucket/models", "expected two slashes after the scheme, as in 's3://bucket/models'"),
    ],
)
def test_what_is_no_repository_is_named(s3: S3, url: str, expected: str) -> None:
    result = validate(url)
    assert result.exit_code == 1
    assert expected in result.output
