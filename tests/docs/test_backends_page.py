"""docs/backends.md: every backend and parameter that it names exists, and its example is a backend that runs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from documented import ROOT, blocks
from isochrone.errors import ConfigError, ModelFailed
from isochrone.models.configuration.backends import BACKENDS, TREE_FILES
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.configuration.validation import validate
from isochrone.models.signature import signature_of
from isochrone.worker.backends.interface import LoadContext

PAGE = ROOT / "docs" / "backends.md"
CONFIG = """
    max_batch_size: 8
    input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
"""


def section(title: str) -> str:
    return PAGE.read_text().partition(f"\n## {title}")[2].partition("\n## ")[0]


def test_the_table_has_every_backend_with_its_files() -> None:
    rows = re.findall(r"^\| \[?`(\w+)`.*?\| ([^|]*)\| [^|]* \| ([^|]*) \| [^|]* \|$", PAGE.read_text(), re.MULTILINE)
    shown = {name: (extra.strip(), re.findall(r"`([\w.]+)`", files)) for name, extra, files in rows}
    assert set(shown) == {entry.names[0] for entry in BACKENDS.values()}
    for entry in BACKENDS.values():
        assert set(entry.files) <= set(shown[entry.names[0]][1])
    assert set(shown["fil"][1]) == set(TREE_FILES.values())


@pytest.mark.parametrize(
    ("title", "package"),
    [
        ("pytorch", "torch"),
        ("openvino", "openvino"),
        ("fil: decision trees", "fil"),
        ("generation", "transformer"),
        ("identity", "identity.py"),
    ],
)
def test_the_parameters_exist(title: str, package: str) -> None:
    place = ROOT / "src" / "isochrone" / "worker" / "backends" / package
    files = [place] if place.is_file() else place.glob("*.py")
    code = "".join(path.read_text() for path in files)
    keys = [
        key
        for row in section(title).splitlines()
        if row.startswith("| `")
        for key in re.findall(r"`(\w+)`", row.split(" | ")[0])
    ]
    assert keys
    for key in keys:
        assert f'"{key}"' in code, key
    # And no parameter of the code is missing there.
    read = set(re.findall(r'parameters\.\w+\(context, "(\w+)"', code))
    assert read <= set(re.findall(r"`(\w+)`", section(title)))


def test_the_configurations_are_valid() -> None:
    shown = [text for page, text in blocks("pbtxt") if page == PAGE]
    assert shown
    for text in shown:
        config, _ = parse_text(text, "docs/backends.md")
        config.name = "m"
        validate(config, "docs/backends.md")


@pytest.fixture
def example(tmp_path: Path) -> ModuleType:
    (text,) = (text for page, text in blocks("python") if page == PAGE)
    name = text.partition("\n")[0].rpartition("/")[2]
    (tmp_path / name).write_text(text)
    spec = importlib.util.spec_from_file_location("documented_backend", tmp_path / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def context(directory: Path, text: str = CONFIG, **parameters: str) -> LoadContext:
    config = text_format.Parse(text, model_config_pb2.ModelConfig(name="m"))
    return LoadContext("m", "1", directory, config, signature_of(config), 0, (), parameters)


def test_the_example_is_a_backend(example: ModuleType, tmp_path: Path) -> None:
    executable = example.load(context(tmp_path))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = executable.execute({"x": x}, None)["y"]
    assert y.tolist() == [[2, 1, 0], [5, 4, 3]]
    assert y.flags.c_contiguous
    twice = example.load(context(tmp_path, times="2")).execute({"x": x}, None)["y"]
    assert twice.tolist() == x.tolist()
    assert not np.shares_memory(twice, x)  # fresh_outputs
    with pytest.raises(ModelFailed, match=r"model 'm' version 1: expected rows, given shape \(3,\)"):
        executable.execute({"x": x[0]}, None)
    executable.close()
    with pytest.raises(ConfigError, match=r"/m/config\.pbtxt: input: expected one input and one output, given 1 and 2"):
        example.load(context(tmp_path / "m" / "1", CONFIG + 'output { name: "z" data_type: TYPE_FP32 dims: [ -1 ] }'))
