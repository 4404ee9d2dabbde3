"""Programs that were exported on a GPU, on any machine; and what torch says of a file that it cannot read."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from config_text import tensors
from load_contexts import MakeContext

from isochrone.errors import InvalidArgument
from isochrone.worker.backends.torch import cpu_reading
from isochrone.worker.backends.torch.backend import load
from isochrone.worker.backends.torch.files import load_file

CONFIG = "\n".join(
    ("max_batch_size: 8", tensors("input", x="FP32"), tensors("output", y="FP32"), "instance_group { kind: KIND_CPU }")
)
GPU = {"type": "cuda", "index": 3}


class Network(torch.nn.Module):  # type: ignore[misc]
    """With a weight, a buffer, a constant and a device that is written into the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.shift = torch.arange(4.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale + self.shift + torch.ones(4, device=x.device)


def with_devices(value: Any, device: dict[str, Any]) -> Any:
    """JSON of an export whose tensors and steps are on another device."""
    if isinstance(value, dict):
        if set(value) == {"type", "index"} and value["type"] == "cpu":
            return device
        return {key: with_devices(each, device) for key, each in value.items()}
    return [with_devices(each, device) for each in value] if isinstance(value, list) else value


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Network]:
    """A file as the fourth GPU of a machine would write it."""
    from torch.export.pt2_archive import PT2ArchiveReader, PT2ArchiveWriter

    network = Network().eval()
    rows = torch.export.Dim("rows", min=1, max=64)
    program = torch.export.export(network, (torch.zeros(2, 4),), dynamic_shapes=[{0: rows}])
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:3")
        torch.export.save(program, tmp_path / "cpu.pt2")
    path = tmp_path / "model.pt2"
    reader = PT2ArchiveReader(str(tmp_path / "cpu.pt2"))
    changed = 0
    with PT2ArchiveWriter(str(path)) as writer:
        for name in reader.get_file_names():
            content = reader.read_bytes(name)
            if name.endswith(".json"):
                moved = json.dumps(with_devices(json.loads(content), GPU)).encode()
                changed += moved.count(b'"cuda"')
                content = moved
            if not name.startswith((".", "byteorder", "version")):
                writer.write_bytes(name, content)
    assert changed >= 5
    with zipfile.ZipFile(path) as archive:
        (examples,) = (each for each in archive.namelist() if "sample_inputs" in each)
        with zipfile.ZipFile(io.BytesIO(archive.read(examples))) as pickled:
            assert any(b"cuda:3" in pickled.read(name) for name in pickled.namelist())
    return path, network


def test_a_program_that_was_exported_on_a_gpu_is_read_to_the_cpu(exported: tuple[Path, Network]) -> None:
    path, network = exported
    file = load_file(torch, path)
    assert file.call is not None
    module: Any = file.call
    held = [*module.parameters(), *module.buffers(), *(each for each in vars(module).values() if torch.is_tensor(each))]
    assert len(held) >= 3
    assert {tensor.device.type for tensor in held} == {"cpu"}
    x = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(module(x), network(x))
    assert file.to_device is not None
    assert torch.equal(file.to_device("cpu")(x), network(x))


def test_it_is_served_on_a_cpu(exported: tuple[Path, Network], make_context: MakeContext) -> None:
    _, network = exported
    context = make_context(CONFIG)
    x = np.ones((2, 4), np.float32)
    answer = load(context).execute({"x": x}, None)
    np.testing.assert_allclose(answer["y"], network(torch.from_numpy(x)).detach().numpy())


def test_only_the_thread_that_loads_reads_to_the_cpu() -> None:
    from torch.export.pt2_archive import _package

    given = type("Device", (), GPU)()
    found: list[Any] = []

    def read() -> None:
        found.append(_package.deserialize_device(given))

    with cpu_reading.reading_to_cpu(torch):
        read()
        other = threading.Thread(target=read)
        other.start()
        other.join()
    read()
    assert found == [torch.device("cpu"), torch.device("cuda:3"), torch.device("cuda:3")]


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    from torch.export.pt2_archive import _package

    def load_pt2(*_: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(_package, "load_pt2", load_pt2)


def test_the_error_has_what_torch_has_only_logged(
    exported: tuple[Path, Network], make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, RuntimeError("DefaultCPUAllocator: can't allocate memory\nframes"))
    context = make_context(CONFIG)
    with pytest.raises(InvalidArgument) as refused:
        load(context)
    expected = f"{exported[0]}: torch cannot load this file: DefaultCPUAllocator: can't allocate memory"
    assert str(refused.value) == expected


def test_an_error_of_another_load_is_not_repeated(
    exported: tuple[Path, Network], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        failing(patch, RuntimeError("first"))
        with pytest.raises(RuntimeError, match=r"^first$"):
            load_file(torch, exported[0])
    failing(monkeypatch, ValueError("second"))
    with pytest.raises(ValueError, match=r"^second$"):
        load_file(torch, exported[0])


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (-100, "PytorchStreamReader failed .*invalid header or archive is corrupted"),
        (40, "PytorchStreamReader failed .*; File is not a zip file"),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(exported: tuple[Path, Network], size: int, reason: str) -> None:
    path = exported[0]
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RuntimeError, match=reason):
        load_file(torch, path)
