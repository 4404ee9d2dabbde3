"""Weights of torch models: read without the interpreter's lock, freed without the garbage collector."""

from __future__ import annotations

import gc
import io
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isochrone.worker.backends.torch.files import load_file
from isochrone.worker.backends.torch.unlocked_file import LARGE_RECORD, UnlockedFile, records_in_place
from isochrone.worker.backends.torch.weights import free_weights


class Tower(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(1000, 8)
        self.layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
        self.register_buffer("scale", torch.ones(8))
        self.register_buffer("own", torch.ones(8), persistent=False)
        self.shift = torch.arange(8.0)

    def forward(self, ids: Any) -> Any:
        return self.layer(self.table(ids)) * self.scale * self.own + self.shift


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tower") / "model.pt2"
    torch.export.save(torch.export.export(Tower().eval(), (torch.zeros(2, dtype=torch.long),)), path)
    return path


@given(st.data())
def test_a_file_reads_as_any_other(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = data.draw(st.binary(max_size=200))
    path = tmp_path_factory.mktemp("bytes") / "file"
    path.write_bytes(content)
    reference = io.BytesIO(content)
    with UnlockedFile(path) as file:
        for _ in range(data.draw(st.integers(1, 5))):
            if data.draw(st.booleans()):
                offset = data.draw(st.integers(0, 250))
                assert file.seek(offset) == reference.seek(offset)
            size = data.draw(st.integers(0, 250), label="size")
            buffers = [bytearray(size), bytearray(size)]
            counts = [reader.readinto(buffer) for reader, buffer in zip((file, reference), buffers, strict=True)]
            assert counts[0] == counts[1]
            assert buffers[0] == buffers[1]
            assert file.tell() == reference.tell()


def test_a_large_read_fills_the_whole_buffer(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * 40_000)
    buffer = bytearray(path.stat().st_size + 5)
    with UnlockedFile(path) as file:
        assert file.readinto(buffer) == path.stat().st_size
    assert buffer[:-5] == path.read_bytes()


def test_large_records_are_read_into_tensors(tmp_path: Path) -> None:
    from torch.export.pt2_archive import PT2ArchiveReader, PT2ArchiveWriter

    large = bytes(range(256)) * (LARGE_RECORD // 256 + 1)
    records = {"data/weights/small": b"few bytes", "data/weights/large": large, "data/other": large}
    path = tmp_path / "archive.pt2"
    with PT2ArchiveWriter(str(path)) as writer:
        for name, content in records.items():
            writer.write_bytes(name, content)
    for _ in range(2):
        with UnlockedFile(path) as file, records_in_place(torch, path), PT2ArchiveReader(file) as reader:
            read = {name: reader.read_bytes(name) for name in records}
        assert {name: type(content) for name, content in read.items()} == {
            "data/weights/small": bytes,
            "data/weights/large": np.ndarray,
            "data/other": bytes,
        }
        assert {name: bytes(content) for name, content in read.items()} == records
        assert torch.frombuffer(read["data/weights/large"], dtype=torch.uint8).numpy().tobytes() == large
    # Others read as before, also on this thread.
    with PT2ArchiveReader(str(path)) as reader:
        assert isinstance(reader.read_bytes("data/weights/large"), bytes)


def tensors_of(module: Any) -> list[torch.Tensor]:
    constants = [value for value in vars(module).values() if torch.is_tensor(value)]
    assert [constant.tolist() for constant in constants] == [list(range(8))]
    return [*module.parameters(), *module.buffers(), *constants]


def test_constants_of_a_program_are_counted(exported: Path) -> None:
    """Those that the module has as buffers are counted there."""
    assert load_file(torch, exported).constant_bytes == 8 * 4


def test_weights_are_freed_without_a_collection(exported: Path) -> None:
    file = load_file(torch, exported)
    held = [weakref.ref(tensor) for tensor in tensors_of(file.call)]
    assert len(held) >= 10
    gc.disable()
    try:
        assert file.to_device is not None
        moved = file.to_device("cpu")
        on_device = [weakref.ref(tensor) for tensor in tensors_of(moved)]
        assert len(on_device) == len(held)
        assert moved(torch.zeros(2, dtype=torch.long)).shape == (2, 8)
        del file
        free_weights(moved)
        assert not any(reference() is not None for reference in (*held, *on_device))
    finally:
        gc.enable()


def test_what_is_no_module_is_left_alone() -> None:
    free_weights(lambda given: given)
    free_weights(None)


def test_a_file_that_is_no_archive_is_torch_s_to_reject(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(Exception, match=r"(?i)zip|archive|central directory|PytorchStreamReader"):
        load_file(torch, tmp_path / "model.pt2")
