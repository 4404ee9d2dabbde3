"""Files of torch run no code at their load: not by pickles, and not without trust in the model."""

from __future__ import annotations

import dataclasses
import io
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from config_text import parameter, tensors
from load_contexts import MakeContext

from isochrone.errors import ConfigError, InvalidArgument
from isochrone.worker.backends.torch.backend import load
from isochrone.worker.backends.torch.unpickling import without_unpickling

_CONFIG = tensors("input", x="FP32") + tensors("output", y="FP32")


class _Double(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class _Attack:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def _exported(path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(_Double(), (torch.ones(1, 2),)), str(path))
    return path


def _with_pickle(path: Path, attack: bytes) -> None:
    """Every record that torch may unpickle is replaced."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    replaced = [name for name in records if "sample_inputs" in name]
    assert replaced
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records.items():
            archive.writestr(name, attack if name in replaced else data)


def _saved(thing: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def test_a_pickle_in_an_exported_program_runs_nothing(tmp_path: Path, make_context: MakeContext) -> None:
    path = _exported(tmp_path / "model.pt2")
    mark = tmp_path / "mark"
    _with_pickle(path, _saved({"a": _Attack(mark)}))
    with pytest.raises(InvalidArgument, match=r"model\.pt2: torch cannot load this file"):
        load(make_context(_CONFIG))
    assert not mark.exists()
    # torch itself would have run it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.export.load(str(path))
        except Exception:
            pass
    assert mark.exists()


def test_a_program_without_pickles_of_objects_loads(tmp_path: Path, make_context: MakeContext) -> None:
    _exported(tmp_path / "model.pt2")
    executable = load(dataclasses.replace(make_context(_CONFIG), trusted=False))
    try:
        outputs = executable.execute({"x": np.ones((1, 2), np.float32)}, None)
        assert outputs["y"].tolist() == [[2.0, 2.0]]
    finally:
        executable.close()


def test_what_reads_a_program_cannot_unpickle(tmp_path: Path) -> None:
    from torch.export.pt2_archive import _package

    mark = tmp_path / "mark"
    attack = _Attack(mark)
    with without_unpickling(torch):
        with pytest.raises(pickle.UnpicklingError):
            torch.load(io.BytesIO(_saved(attack)), weights_only=False)
        with pytest.raises(pickle.UnpicklingError, match="no tensor"):
            _package.pickle.loads(pickle.dumps(attack))
    assert not mark.exists()
    # Others read as before.
    _package.pickle.loads(pickle.dumps(attack))
    assert mark.exists()


@pytest.mark.parametrize("more", ["", parameter("isolation", "process")])
def test_torchscript_needs_trust(tmp_path: Path, make_context: MakeContext, more: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(_Double()).save(str(tmp_path / "model.pt"))
    context = dataclasses.replace(make_context(_CONFIG + more), trusted=False)
    with pytest.raises(ConfigError, match="TorchScript") as caught:
        load(context)
    assert "--trust-model m" in str(caught.value)
    assert "models.m.trust: true" in str(caught.value)
    executable = load(dataclasses.replace(context, trusted=True))
    executable.close()


def test_python_of_ranks_needs_trust(tmp_path: Path, make_context: MakeContext) -> None:
    (tmp_path / "model.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'mark')!r}).touch()\n")
    context = make_context(_CONFIG + parameter("tensor_parallel", "1"))
    with pytest.raises(ConfigError, match="ranks"):
        load(dataclasses.replace(context, trusted=False))
    assert not (tmp_path / "mark").exists()


def test_native_code_needs_trust(tmp_path: Path, make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    from isochrone.worker.backends.torch import backend

    _exported(tmp_path / "model.pt2")
    monkeypatch.setattr(backend, "compiled_target", lambda path: {"AOTI_DEVICE_KEY": "cpu"})
    with pytest.raises(ConfigError, match="AOTInductor"):
        load(dataclasses.replace(make_context(_CONFIG), trusted=False))
