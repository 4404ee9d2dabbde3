"""Repositories on disk: what a scan sees, what a read gives, and what each kind of trouble is called."""

from __future__ import annotations

import gc
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_files import IDENTITY, WriteModel, WriteOnnx

from isochrone.errors import ConfigError, Internal, InvalidArgument, NotFound, NoVersion
from isochrone.models.repository.digest import digest
from isochrone.models.repository.names import validate_model_name
from isochrone.models.repository.repository import Repository
from isochrone.protocol.control_json import model_config_json


def test_reading_a_model(write_model: WriteModel) -> None:
    config = IDENTITY.rstrip()[:-1] + ' label_filename: "labels.txt" } version_policy { latest { num_versions: 2 } }'
    root = write_model("m", config, versions=("1", "2", "10", "old"))
    (root / "m" / "labels.txt").write_text("cat\ndog\r\n\nbird\n")
    description = Repository([root]).read("m")
    assert description.name == description.config.name == description.signature.model == "m"
    assert description.versions == {2: root / "m" / "2", 10: root / "m" / "10"}
    assert description.ignored == ("old",)
    assert description.signature.max_batch_size == 8
    assert description.signature.output_by_name["Y"].labels == ("cat", "dog", "", "bird")
    assert description.signature.check([("X", "FP32", (2, 4))], ["Y"]) == 2
    assert "assumed name 'm' from the directory" in description.assumed
    assert len(digest(description.config, description.versions[10])) == 64
    description.release()
    assert (root / "m").is_dir()


def test_reading_without_a_configuration(tmp_path: Path, write_onnx: WriteOnnx) -> None:
    write_onnx(tmp_path / "mlp" / "3" / "model.onnx")
    description = Repository([tmp_path]).read("mlp")
    assert description.signature.max_batch_size == 32
    assert list(description.versions) == [3]


def test_unknown_models_and_bad_names(write_model: WriteModel, tmp_path: Path) -> None:
    repository = Repository([write_model()])
    with pytest.raises(NotFound) as caught:
        repository.read("x")
    assert str(caught.value) == "Request for unknown model: 'x' is not found"
    for name in ("", ".", "..", "../m", "a/b", "a\\b", "a\0b", "a\nb", ".hidden", "/etc", "x" * 256, "\ud800"):
        with pytest.raises(InvalidArgument, match="model name: expected one directory name"):
            repository.read(name)
        with pytest.raises(InvalidArgument, match="model name: expected one directory name"):
            repository.read(name, "{}", {"1/model.py": b""})


@given(st.text(max_size=12))
def test_a_valid_name_is_one_component_below_the_repository(name: str) -> None:
    try:
        validate_model_name(name)
    except InvalidArgument:
        return
    path = Path("/repository") / name
    assert path.parent == Path("/repository")
    assert os.path.normpath(path) == str(path)


@pytest.mark.parametrize(
    ("config", "key", "expected", "given"),
    [
        ('name: "other"' + IDENTITY, "name", "'m', as the directory is called", "'other'"),
        (
            IDENTITY + "version_policy { specific { versions: 7 } }",
            "version_policy.specific.versions",
            "(present: 1)",
            "[7]",
        ),
        (IDENTITY + "instance_group { count: -2 }", "instance_group[0].count", "at least 1", "-2"),
        ('backend: "python"', "input", "at least one input", "none"),
        (
            'backend: "python" input { name: "X" data_type: TYPE_FP32 dims: 1 }'
            ' output { name: "Y" data_type: TYPE_FP32 dims: 1 label_filename: "gone.txt" }',
            "output[0].label_filename",
            "a readable file at",
            "No such file or directory",
        ),
        (
            IDENTITY + 'sequence_batching { state { input_name: "a" output_name: "b" data_type: TYPE_FP32 dims: 1'
            ' initial_state { data_type: TYPE_FP32 dims: 1 data_file: "gone" } } }',
            "sequence_batching.state[0].initial_state[0].data_file",
            "initial_state",
            "'gone', which is not there",
        ),
    ],
)
def test_configuration_errors_name_the_file(
    write_model: WriteModel, config: str, key: str, expected: str, given: str
) -> None:
    root = write_model("m", config)
    with pytest.raises(ConfigError) as caught:
        Repository([root]).read("m")
    error = caught.value
    assert (error.where, error.key, error.given) == (str(root / "m" / "config.pbtxt"), key, given)
    assert expected in error.expected


def test_labels_that_are_not_text(write_model: WriteModel) -> None:
    root = write_model(
        "m",
        IDENTITY.rstrip()[:-1] + ' label_filename: "labels.txt" }',
    )
    (root / "m" / "labels.txt").write_bytes(b"\xff\n")
    with pytest.raises(ConfigError) as caught:
        Repository([root]).read("m")
    assert caught.value.key == "output[0].label_filename"
    assert "UTF-8" in caught.value.expected


def test_a_model_without_versions(write_model: WriteModel) -> None:
    root = write_model("m", versions=("v1", "01"))
    with pytest.raises(ConfigError) as caught:
        Repository([root]).read("m")
    assert (caught.value.where, caught.value.key) == (str(root / "m"), "versions")
    assert caught.value.given == "none (ignored: 01, v1)"


@pytest.mark.parametrize("target", ["config.pbtxt", "nowhere", "1"])
def test_a_configuration_that_is_no_file_is_not_taken_for_none(write_model: WriteModel, target: str) -> None:
    root = write_model()
    (root / "m" / "config.pbtxt").unlink()
    (root / "m" / "config.pbtxt").symlink_to(target)
    with pytest.raises(ConfigError) as caught:
        Repository([root]).read("m")
    assert (caught.value.where, caught.value.key) == (str(root / "m" / "config.pbtxt"), "file")
    assert caught.value.expected == "a regular file"


def test_repositories_that_are_no_directories(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Repository([tmp_path / "gone"])
    assert str(caught.value) == f"model repository: {tmp_path / 'gone'}: expected a directory, given nothing there"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="given a file"):
        Repository([tmp_path / "file"])


def test_the_same_model_in_two_repositories(write_model: WriteModel) -> None:
    first = write_model("m", repository="first")
    second = write_model("m", repository="second")
    write_model("n", repository="second")
    repository = Repository([first, second])
    with pytest.raises(ConfigError) as caught:
        repository.read("m")
    assert (caught.value.key, caught.value.expected) == ("m", "one directory of this name")
    assert caught.value.given == f"{first / 'm'} and {second / 'm'}"
    entries = repository.scan()
    assert entries["n"].problem is None
    assert entries["m"].problem is not None
    assert str(first / "m") in entries["m"].problem.given
    assert str(second / "m") in entries["m"].problem.given


def test_a_scan_sees_models_and_versions_only(write_model: WriteModel) -> None:
    root = write_model("m", versions=("2", "1"))
    write_model("n", None)
    (root / ".git").mkdir()
    (root / "README.md").write_text("")
    entries = Repository([root]).scan()
    assert sorted(entries) == ["m", "n"]
    assert entries["m"].versions == (1, 2)
    assert entries["m"].directory == root / "m"
    assert sorted(entries["m"].version_fingerprints) == [1, 2]


def test_fingerprints_change_where_something_was_written_and_nowhere_else(write_model: WriteModel) -> None:
    root = write_model("m", versions=("1", "2"))
    repository = Repository([root])
    before = repository.scan()["m"]
    (root / "m" / "1" / "__pycache__").mkdir()
    (root / "m" / "1" / "__pycache__" / "model.pyc").write_bytes(b"x")
    assert repository.scan()["m"] == before

    os.utime(root / "m" / "2" / "model.py", ns=(5, 5))
    touched = repository.scan()["m"]
    assert touched.version_fingerprints[2] != before.version_fingerprints[2]
    assert touched.version_fingerprints[1] == before.version_fingerprints[1]
    assert touched.config_fingerprint == before.config_fingerprint

    (root / "m" / "labels.txt").write_text("a")
    labelled = repository.scan()["m"]
    assert labelled.config_fingerprint != touched.config_fingerprint
    assert labelled.version_fingerprints == touched.version_fingerprints

    (root / "m" / "1" / "extra").write_text("")
    assert repository.scan()["m"].version_fingerprints[1] != labelled.version_fingerprints[1]


def test_directories_that_vanish(write_model: WriteModel) -> None:
    root = write_model("m")
    write_model("n")
    repository = Repository([root])
    assert sorted(repository.scan()) == ["m", "n"]
    shutil.rmtree(root / "m")
    assert sorted(repository.scan()) == ["n"]
    with pytest.raises(NotFound, match="'m' is not found"):
        repository.read("m")
    shutil.rmtree(root)
    with pytest.raises(ConfigError, match="expected a readable directory, given No such file"):
        repository.scan()


def test_one_unreadable_model_does_not_harm_the_others(write_model: WriteModel) -> None:
    root = write_model("m")
    write_model("n")
    (root / "m" / "1" / "weights").symlink_to(root / "nowhere")
    entries = Repository([root]).scan()
    assert entries["n"].problem is None
    assert entries["m"].problem is not None
    assert entries["m"].problem.where == str(root / "m" / "1" / "weights")


def test_a_configuration_from_a_load_request(write_model: WriteModel) -> None:
    repository = Repository([write_model()])
    form = model_config_json(repository.read("m").config)
    form["max_batch_size"] = 3
    assert repository.read("m", json.dumps(form)).signature.max_batch_size == 3
    with pytest.raises(ConfigError) as caught:
        repository.read("m", json.dumps({**form, "max_batch_size": -3}))
    assert str(caught.value) == ("load parameter 'config': max_batch_size: expected an integer of at least 0, given -3")
    with pytest.raises(NotFound):
        repository.read("x", json.dumps({**form, "name": "x"}))


def test_files_from_a_load_request(write_model: WriteModel) -> None:
    repository = Repository([write_model()])
    config = json.dumps({**model_config_json(repository.read("m").config), "name": "fresh", "instance_group": []})
    files = {"file:1/model.py": b"first", "2/model.py": b"second", "2/sub/data.bin": b"\0"}
    description = repository.read("fresh", config, files)
    assert list(description.versions) == [2]
    assert (description.versions[2] / "model.py").read_bytes() == b"second"
    assert (description.versions[2] / "sub" / "data.bin").read_bytes() == b"\0"
    private = description.directory.parent
    assert private.stat().st_mode & 0o777 == 0o700
    description.release()
    assert not private.exists()
    description.release()


def test_no_room_for_files(write_model: WriteModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository([write_model()])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(Internal, match="no temporary directory for the files of model 'm'"):
        repository.read("m", "{}", {"1/model.py": b""})


def test_files_go_with_the_last_reference(write_model: WriteModel) -> None:
    repository = Repository([write_model()])
    config = json.dumps(model_config_json(repository.read("m").config))
    description = repository.read("m", config, {"1/model.py": b""})
    private = description.directory.parent
    assert private.is_dir()
    del description
    gc.collect()
    assert not private.exists()


@pytest.mark.parametrize(
    "name",
    ["../x", "1/../../x", "/etc/passwd", "1//x", "1/./x", "", "file:", "1/", "1/a\0b", "1/a\\b", "1/" + "x" * 300],
)
def test_no_file_leads_out_of_its_directory(
    write_model: WriteModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    repository = Repository([write_model()])
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    with pytest.raises(ConfigError) as caught:
        repository.read("m", "{}", {name: b"content"})
    assert caught.value.key.startswith("file:")
    assert "<version>/<name>" in caught.value.expected
    assert caught.value.given
    assert list(private.iterdir()) == []


def test_files_that_contradict_each_other_or_come_alone(
    write_model: WriteModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository([write_model()])
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    for files in ({"1/a": b"", "1/a/b": b""}, {"1/a": b"", "file:1/a": b""}):
        with pytest.raises(ConfigError, match="load request: file:1/a"):
            repository.read("m", "{}", files)
    with pytest.raises(ConfigError) as caught:
        repository.read("m", None, {"1/model.py": b""})
    assert (caught.value.where, caught.value.key, caught.value.given) == ("load request", "config", "none")
    with pytest.raises(ConfigError, match="versions: expected at least one version directory"):
        repository.read("m", '{"backend": "python"}', {"labels.txt": b""})
    assert list(private.iterdir()) == []


def test_a_named_configuration_stands_in_where_there_is_one(write_model: WriteModel) -> None:
    root = write_model("m", IDENTITY)
    write_model("plain", IDENTITY)
    (root / "m" / "configs").mkdir()
    (root / "m" / "configs" / "h100.pbtxt").write_text(IDENTITY.replace("max_batch_size: 8", "max_batch_size: 3"))
    named = Repository([root], "h100")
    assert named.read("m").config.max_batch_size == 3
    assert named.read("plain").config.max_batch_size == 8
    assert Repository([root], "other").read("m").config.max_batch_size == 8
    assert Repository([root]).read("m").config.max_batch_size == 8


def test_the_server_says_which_batch_size_is_assumed(tmp_path: Path, write_onnx: WriteOnnx) -> None:
    write_onnx(tmp_path / "mlp" / "1" / "model.onnx")

    def assumed(**sizes: int) -> int:
        return int(Repository([tmp_path], assumed_batch_sizes=sizes).read("mlp").config.max_batch_size)

    assert (assumed(), assumed(onnx=5), assumed(torch=5)) == (32, 5, 32)
    assert int(Repository([tmp_path], assumed_batch_sizes={"": 6}).read("mlp").config.max_batch_size) == 6
    assert assumed(onnx=0) == 0


def test_versions_that_a_policy_names_and_that_are_not_there_are_left_out(write_model: WriteModel) -> None:
    config = IDENTITY + "version_policy { specific { versions: [ 1, 7 ] } }"
    described = Repository([write_model(config=config, versions=("1", "3"))]).read("m")
    assert list(described.versions) == [1]


def test_a_policy_without_any_version_that_is_there(write_model: WriteModel) -> None:
    config = IDENTITY + "version_policy { specific { versions: [ 7 ] } }"
    words = r"must be available under the version policy of model 'm'; .*\(present: 1, 3\), given \[7\]"
    with pytest.raises(NoVersion, match=words):
        Repository([write_model(config=config, versions=("1", "3"))]).read("m")
