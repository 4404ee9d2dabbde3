"""Digests that are remembered are those that reading again would give; which versions are loaded is no part of them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_files import WriteModel, WriteOnnx
from onnx import TensorProto
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models import onnx_file
from isochrone.models.repository import digest as digest_module
from isochrone.models.repository.digest import DigestMemory, digest
from isochrone.models.repository.repository import Repository

#: Long before now, so that the file counts as settled.
LONG_AGO = (1_000_000_000_000_000_000, 1_000_000_000_000_000_000)


def settle(path: Path) -> None:
    os.utime(path, ns=LONG_AGO)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories that were read."""
    read: list[Path] = []

    def counted(config: model_config_pb2.ModelConfig, directory: Path) -> str:
        read.append(directory)
        return digest(config, directory)

    monkeypatch.setattr(digest_module, "digest", counted)
    return read


def version(tmp_path: Path, content: bytes = b"weights") -> Path:
    directory = tmp_path / "m" / "1"
    directory.mkdir(parents=True)
    (directory / "model.onnx").write_bytes(content)
    settle(directory / "model.onnx")
    return directory


policies = st.one_of(
    st.builds(lambda count: {"latest": {"num_versions": count}}, st.integers(1, 5)),
    st.builds(lambda numbers: {"specific": {"versions": numbers}}, st.lists(st.integers(1, 9), min_size=1)),
    st.just({"all": {}}),
    st.none(),
)


@given(policies, policies)
def test_which_versions_are_loaded_is_no_part_of_a_digest(one: object, other: object) -> None:
    with tempfile.TemporaryDirectory() as directory:
        configs = [model_config_pb2.ModelConfig(name="m", version_policy=policy) for policy in (one, other)]
        assert digest(configs[0], Path(directory)) == digest(configs[1], Path(directory))


def test_a_digest_leaves_the_configuration_as_it_was(tmp_path: Path) -> None:
    config = model_config_pb2.ModelConfig(name="m", version_policy={"specific": {"versions": [1]}})
    digest(config, version(tmp_path))
    assert list(config.version_policy.specific.versions) == [1]


def test_files_that_did_not_change_are_not_read_again(tmp_path: Path, hashed: list[Path]) -> None:
    memory, config, directory = DigestMemory(), model_config_pb2.ModelConfig(name="m"), version(tmp_path)
    first = memory.digest(config, directory)
    config.version_policy.specific.versions.append(1)
    assert memory.digest(config, directory) == first == digest(config, directory)
    assert hashed == [directory]


def test_every_change_is_seen(tmp_path: Path, hashed: list[Path]) -> None:
    memory, config, directory = DigestMemory(), model_config_pb2.ModelConfig(name="m"), version(tmp_path)
    seen = [memory.digest(config, directory)]
    file = directory / "model.onnx"
    # As long as before, and with its old time put back: the change of the inode's own time remains.
    file.write_bytes(b"WEIGHTS")
    settle(file)
    seen.append(memory.digest(config, directory))
    # Exchanged for another file by a rename, as deployments do.
    (tmp_path / "new").write_bytes(b"wEIGHTS")
    settle(tmp_path / "new")
    (tmp_path / "new").rename(file)
    seen.append(memory.digest(config, directory))
    (directory / "extra").write_bytes(b"")
    settle(directory / "extra")
    seen.append(memory.digest(config, directory))
    config.max_batch_size = 3
    seen.append(memory.digest(config, directory))
    assert len(set(seen)) == len(seen) == len(hashed)


def test_a_file_beside_the_version_counts(tmp_path: Path) -> None:
    memory, directory = DigestMemory(), version(tmp_path)
    config = model_config_pb2.ModelConfig(name="m")
    config.output.add(name="Y", label_filename="labels.txt")
    labels = directory.parent / "labels.txt"
    with pytest.raises(ConfigError, match=r"labels\.txt"):
        memory.digest(config, directory)
    labels.write_text("cat")
    settle(labels)
    before = memory.digest(config, directory)
    labels.write_text("dog")
    settle(labels)
    assert memory.digest(config, directory) != before


def test_a_fresh_file_is_read_every_time(tmp_path: Path, hashed: list[Path]) -> None:
    memory, config, directory = DigestMemory(), model_config_pb2.ModelConfig(name="m"), version(tmp_path)
    # Written a moment ago: it could be written again within the same tick, and look the same.
    (directory / "model.onnx").write_bytes(b"weights")
    assert memory.digest(config, directory) == memory.digest(config, directory)
    assert len(hashed) == 2


def test_what_is_remembered_is_bounded(tmp_path: Path, hashed: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_module, "_MAX_REMEMBERED", 3)
    memory, directory = DigestMemory(), version(tmp_path)
    for rows in range(10):
        memory.digest(model_config_pb2.ModelConfig(name="m", max_batch_size=rows), directory)
    assert len(memory._known) <= 3


def test_each_version_is_completed_from_its_own_files(tmp_path: Path, write_onnx: WriteOnnx) -> None:
    """Version 2 has other tensors; version 1 is what it was when it was alone."""
    write_onnx(tmp_path / "m" / "1" / "model.onnx", [("A", "B", TensorProto.FLOAT, ["batch", 16])])
    write_onnx(tmp_path / "m" / "2" / "model.onnx", [("A", "C", TensorProto.FLOAT, ["batch", 8])])
    repository = Repository([tmp_path])
    alone = repository.read("m", versions=[1])
    both = repository.read("m", versions=[2, 1])
    assert list(both.versions) == [1, 2]
    own = both.of_version(1)
    assert [spec.dims for spec in own.signature.inputs] == [(16,)] == [spec.dims for spec in alone.signature.inputs]
    assert [spec.name for spec in both.of_version(2).signature.outputs] == ["C"]
    assert digest(own.config, both.versions[1]) == digest(alone.config, alone.versions[1])
    assert both.of_version(2) is both


def test_versions_stand_in_for_the_policy_alone(write_model: WriteModel) -> None:
    repository = Repository([write_model(versions=("1", "2", "3"))])
    described = repository.read("m", versions=[3, 1])
    assert list(described.versions) == [1, 3]
    assert described.config.max_batch_size == 8
    assert list(described.config.version_policy.specific.versions) == [3, 1]
    with pytest.raises(ConfigError) as caught:
        repository.read("m", versions=[1, 7])
    assert caught.value.where == "load parameter 'versions'"
    assert caught.value.expected == "a version that is present (present: 1, 2, 3)"
    assert caught.value.given == "7"


def test_an_onnx_file_that_did_not_change_is_not_read_again(
    tmp_path: Path, write_onnx: WriteOnnx, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    original = onnx_file._read

    def counted(path: Path) -> onnx_file.Declared:
        read.append(path)
        return original(path)

    monkeypatch.setattr(onnx_file, "_read", counted)
    path = write_onnx(tmp_path / "model.onnx", [("A", "B", TensorProto.FLOAT, ["batch", 16])])
    settle(path)
    first = onnx_file.read_onnx_tensors(path)
    assert onnx_file.read_onnx_tensors(path) == first
    assert read == [path]
    write_onnx(path, [("A", "B", TensorProto.FLOAT, ["batch", 32])])
    settle(path)
    assert onnx_file.read_onnx_tensors(path)[0][0].shape == (-1, 32)
