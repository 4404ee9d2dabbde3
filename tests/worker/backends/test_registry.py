"""Backends by name, each imported only when it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from isochrone.errors import ConfigError
from isochrone.worker.backends.onnx import backend as onnx
from isochrone.worker.backends.python import backend as python
from isochrone.worker.backends.registry import loader


def test_names_give_their_loaders() -> None:
    assert loader("onnx") is onnx.load
    assert loader("python") is python.load


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    message = r"m/config\.pbtxt: backend: expected one of onnx, python, torch, given 'tensorflow'"
    with pytest.raises(ConfigError, match=message):
        loader("tensorflow", "m/config.pbtxt")


def test_no_runtime_is_imported_before_it_is_needed() -> None:
    program = (
        "import sys; import isochrone.worker.backends.registry;"
        " print([name for name in ('onnxruntime', 'torch', 'numpy') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"
