"""Backends by name, each imported only when it is needed."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from documented import ROOT
from isochrone.errors import ConfigError
from isochrone.worker.backends.onnx import backend as onnx
from isochrone.worker.backends.python import backend as python
from isochrone.worker.backends.registry import loader


def test_names_give_their_loaders() -> None:
    assert loader("onnx") is onnx.load
    assert loader("python") is python.load


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    known = "onnx, python, torch, openvino, fil, identity, generation"
    message = rf"m/config\.pbtxt: backend: expected one of {known}, given 'tensorflow'"
    with pytest.raises(ConfigError, match=message):
        loader("tensorflow", "m/config.pbtxt")


def test_no_runtime_is_imported_before_it_is_needed() -> None:
    program = (
        "import sys; import isochrone.worker.backends.registry;"
        " print([name for name in ('onnxruntime', 'torch', 'numpy', 'openvino', 'treelite') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"


@pytest.mark.parametrize(
    ("backend", "package", "extra"),
    [
        ("torch", "torch", "torch"),
        ("openvino", "openvino", "openvino"),
        ("fil", "treelite", "trees"),
        ("fil", "onnx", "trees"),
        ("generation", "torch", "generation"),
        ("generation", "safetensors", "generation"),
        ("generation", "tokenizers", "generation"),
        ("generation", "jinja2", "generation"),
    ],
)
def test_a_backend_without_its_runtime_names_the_extra(backend: str, package: str, extra: str) -> None:
    program = f"""
import sys
from pathlib import Path
sys.modules["{package}"] = None  # what an import of a missing package comes to
from isochrone.errors import ConfigError
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.registry import loader
context = LoadContext("m", "1", Path("/models/m/1"), None, None, 0, (), {{}})
try:
    loader("{backend}")(context)
except ConfigError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    expected = f"/models/m/config.pbtxt: backend: expected {package} to be installed (pip install isochrone[{extra}])"
    assert expected in said
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
