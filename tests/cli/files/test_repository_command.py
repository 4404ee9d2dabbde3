"""``isochrone repository index``: the manifest of a directory."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.models.sources.manifest import MANIFEST, parse_manifest


def test_the_manifest_is_written_and_written_again(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text("x")
    first = CliRunner().invoke(app, ["repository", "index", str(tmp_path)])
    assert first.exit_code == 0, first.output
    assert "1 file, 1 byte" in first.output
    (tmp_path / "ensemble" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text("name: 'm'")
    second = CliRunner().invoke(app, ["repository", "index", str(tmp_path), "--json"])
    assert json.loads(second.output) == {"manifest": str(tmp_path / MANIFEST), "files": 2, "bytes": 10}
    files = parse_manifest((tmp_path / MANIFEST).read_bytes(), "")
    assert [file.path for file in files] == ["ensemble/1", "m/1/model.py", "m/config.pbtxt"]


def test_a_model_or_nothing_is_no_repository(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").touch()
    for path in (tmp_path / "m", tmp_path / "nothing"):
        ended = CliRunner().invoke(app, ["repository", "index", str(path)])
        assert ended.exit_code == 1
        assert "expected a directory of models in Triton's layout" in ended.output


def test_a_url_is_no_directory() -> None:
    for place, named in (("s3://bucket/models", "a directory of this machine"), ("s3:/bucket/m", "'s3://bucket/m'")):
        ended = CliRunner().invoke(app, ["repository", "index", place])
        assert ended.exit_code == 1
        assert f"{named}" in ended.output


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text("x")
    # A directory in the place of the file, which also root cannot replace.
    (tmp_path / MANIFEST / "in_the_way").mkdir(parents=True)
    ended = CliRunner().invoke(app, ["repository", "index", str(tmp_path)])
    assert ended.exit_code == 1
    assert "cannot write" in ended.output
