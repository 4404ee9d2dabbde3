"""What a repository states about its files: manifests, checksums, listings."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from isochrone.errors import ConfigError
from isochrone.models.sources.checksums import parse_checksums, with_checksums
from isochrone.models.sources.files import StoredFile, usable
from isochrone.models.sources.manifest import manifest_of, parse_manifest

_SHA = hashlib.sha256(b"x").hexdigest()


def test_a_manifest_lists_every_file_with_its_digest(tmp_path: Path) -> None:
    (tmp_path / "m" / "1" / "__pycache__").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_bytes(b"x")
    (tmp_path / "m" / "1" / "__pycache__" / "model.pyc").write_bytes(b"y")
    (tmp_path / "m" / ".hidden").write_bytes(b"y")
    (tmp_path / "ensemble" / "1").mkdir(parents=True)
    (tmp_path / "other" / "1").mkdir(parents=True)
    (tmp_path / "other" / "1" / ".keep").touch()
    files = parse_manifest(manifest_of(tmp_path), "manifest")
    empty = hashlib.sha256().hexdigest()
    assert files == [
        StoredFile("ensemble/1", 0, empty, empty),
        StoredFile("m/1/model.py", 1, _SHA, _SHA),
        StoredFile("other/1", 0, empty, empty),
    ]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format": 2}, "format"),
        ({"files": [{"path": "a/b", "size": -1, "sha256": _SHA}]}, "files[0].size"),
        ({"files": [{"path": "a/b", "size": 1, "sha256": "X" * 64}]}, "files[0].sha256"),
        ({"files": [{"path": "a/b", "size": 1}]}, "sha256"),
        ({"more": 1}, "more"),
    ],
)
def test_a_wrong_manifest_is_rejected_by_its_key(change: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_manifest(json.dumps({"format": 1, "files": [], **change}).encode(), "s3://b/isochrone-repository.json")
    assert named in str(raised.value)
    assert "s3://b/isochrone-repository.json" in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]"])
def test_what_is_no_json_object_is_rejected(content: bytes) -> None:
    with pytest.raises(ConfigError):
        parse_manifest(content, "manifest")


def test_keys_that_lead_out_of_a_directory_are_left_out() -> None:
    paths = ["m/1/a", "../b", "m/../../c", "/etc/passwd", "m//d", "m/./e", "m/f\\g", "m/h\ni", "m/" + "j" * 256]
    assert [file.path for file in usable(StoredFile(path, 1, "") for path in paths)] == ["m/1/a"]


def test_objects_that_show_folders_are_left_out() -> None:
    files = [StoredFile("m", 0, ""), StoredFile("m/1", 0, ""), StoredFile("m/1/a", 1, ""), StoredFile("e/1", 0, "")]
    assert [file.path for file in usable(files)] == ["e/1", "m/1/a"]


def test_checksums_are_those_of_sha256sum() -> None:
    text = f"{_SHA}  model.onnx\n{_SHA.upper()} *./data/weights 1.bin\n\n# a comment\n"
    assert parse_checksums(text.encode(), "w") == {"model.onnx": _SHA, "data/weights 1.bin": _SHA}


@pytest.mark.parametrize(
    "line", ["abc  model.onnx", f"{_SHA} model.onnx", f"{_SHA}  ", f"SHA256 (model.onnx) = {_SHA}"]
)
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_checksums(f"{_SHA}  a\n{line}\n".encode(), "SHA256SUMS")
    assert "line 2" in str(raised.value)


def test_checksums_are_of_their_folder_alone() -> None:
    files = [StoredFile("m/1/a", 1, ""), StoredFile("m/2/a", 1, ""), StoredFile("m/a", 1, "")]
    found = with_checksums(files, "m/1", {"a": _SHA}, "w")
    assert [file.sha256 for file in found] == [_SHA, "", ""]


def test_a_checksum_of_a_missing_file_is_an_error() -> None:
    with pytest.raises(ConfigError) as raised:
        with_checksums([StoredFile("m/1/a", 1, "")], "m/1", {"b": _SHA}, "m/1/SHA256SUMS")
    assert "m/1/SHA256SUMS: b" in str(raised.value)
