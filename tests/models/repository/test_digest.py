"""The digest changes with every byte, path and setting that matters, and with nothing else."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.repository.digest import digest

Files = dict[str, bytes]

names = st.sampled_from(["a", "b", "ab", "sub/a", "sub/b", "sub/deep/a"])
trees = st.dictionaries(names, st.binary(max_size=12), max_size=4)
configs = st.builds(
    model_config_pb2.ModelConfig,
    name=st.sampled_from(["m", "n"]),
    max_batch_size=st.integers(0, 3),
    metric_tags=st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), max_size=3),
)


def write(directory: Path, files: Files) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


def digest_of(config: model_config_pb2.ModelConfig, files: Files) -> str:
    """In a fresh directory each time, so that equal digests also prove that no absolute path leaks in."""
    with tempfile.TemporaryDirectory() as root:
        return digest(config, write(Path(root) / "1", files))


@given(configs, trees, configs, trees)
def test_equal_exactly_when_files_and_configuration_are(
    config: model_config_pb2.ModelConfig,
    files: Files,
    other_config: model_config_pb2.ModelConfig,
    other_files: Files,
) -> None:
    same = config == other_config and files == other_files
    assert (digest_of(config, files) == digest_of(other_config, other_files)) is same


@given(trees.filter(any), st.data())
def test_any_flipped_bit_any_renamed_file_any_added_file(files: Files, data: st.DataObject) -> None:
    config = model_config_pb2.ModelConfig(name="m")
    before = digest_of(config, files)
    assert len(before) == 64
    name = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(files[name] or b"\0")
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert digest_of(config, {**files, name: bytes(content)}) != before
    renamed = {(f"{key}.moved" if key == name else key): value for key, value in files.items()}
    assert digest_of(config, renamed) != before
    assert digest_of(config, {**files, "extra": b""}) != before


def test_bytes_cannot_move_between_files_or_into_names() -> None:
    config = model_config_pb2.ModelConfig(name="m")
    trees_alike = [{"a": b"bc", "b": b""}, {"a": b"b", "b": b"c"}, {"a": b"", "b": b"bc"}, {"ab": b"bc"}]
    assert len({digest_of(config, files) for files in trees_alike}) == len(trees_alike)


def test_times_caches_and_map_order_do_not_count(tmp_path: Path) -> None:
    forward = model_config_pb2.ModelConfig(name="m")
    backward = model_config_pb2.ModelConfig(name="m")
    for key in "abcdefgh":
        forward.metric_tags[key] = key
    for key in reversed("abcdefgh"):
        backward.metric_tags[key] = key
    directory = write(tmp_path / "1", {"model.py": b"x = 1", "sub/data": b"y"})
    before = digest(forward, directory)
    os.utime(directory / "model.py", ns=(1, 1))
    write(directory, {"__pycache__/model.cpython-311.pyc": b"z", "sub/__pycache__/a.pyc": b"z"})
    (directory / "empty").mkdir()
    assert digest(backward, directory) == before
    copy = tmp_path / "elsewhere" / "9"
    shutil.copytree(directory, copy)
    assert digest(forward, copy) == before


def test_large_files_are_read_to_the_end(tmp_path: Path) -> None:
    config = model_config_pb2.ModelConfig(name="m")
    content = bytearray(3 << 20)
    before = digest(config, write(tmp_path / "1", {"weights": bytes(content)}))
    content[-1] = 1
    assert digest(config, write(tmp_path / "1", {"weights": bytes(content)})) != before


def test_links_count_as_what_they_lead_to_and_loops_end(tmp_path: Path) -> None:
    config = model_config_pb2.ModelConfig(name="m")
    plain = write(tmp_path / "1", {"model.onnx": b"weights", "sub/a": b"a"})
    linked = write(tmp_path / "2", {})
    (linked / "model.onnx").symlink_to(plain / "model.onnx")
    (linked / "sub").symlink_to(plain / "sub")
    assert digest(config, linked) == digest(config, plain)
    (plain / "loop").symlink_to(plain)
    assert digest(config, plain) == digest(config, linked)


def test_files_that_the_configuration_names_beside_the_version_count(tmp_path: Path) -> None:
    config = model_config_pb2.ModelConfig(name="m")
    config.output.add(name="Y", label_filename="labels.txt")
    state = config.sequence_batching.state.add(input_name="s", output_name="t")
    state.initial_state.add(data_file="zeros")
    directory = write(tmp_path / "m" / "1", {"model.onnx": b"w"})
    write(tmp_path / "m", {"labels.txt": b"cat\n", "initial_state/zeros": b"0", "README": b"r"})
    seen = {digest(config, directory)}
    write(tmp_path / "m", {"README": b"other"})
    seen.add(digest(config, directory))
    assert len(seen) == 1
    write(tmp_path / "m", {"labels.txt": b"dog\n"})
    seen.add(digest(config, directory))
    write(tmp_path / "m", {"initial_state/zeros": b"1"})
    seen.add(digest(config, directory))
    assert len(seen) == 3


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    config = model_config_pb2.ModelConfig(name="m")
    with pytest.raises(ConfigError) as caught:
        digest(config, tmp_path / "gone")
    assert caught.value.where == str(tmp_path / "gone")
    assert caught.value.given == "No such file or directory"
    config.output.add(name="Y", label_filename="labels.txt")
    directory = write(tmp_path / "1", {})
    with pytest.raises(ConfigError, match=r"labels\.txt: file: expected a readable file, given No such file"):
        digest(config, directory)
    (directory / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError) as caught:
        digest(model_config_pb2.ModelConfig(), directory)
    assert caught.value.where == str(directory / "dangling")
