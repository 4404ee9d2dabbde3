"""The argument of ``initialize``, and which files are Triton's models. Real Triton's are compared in tests/peers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from config_text import parameter, tensors

from isochrone.errors import ConfigError
from isochrone.worker.backends.python.triton.arguments import config_json, is_triton_model, model_context

MakeContext = Callable[..., Any]

FLOATS = tensors("input", x="FP32") + tensors("output", y="FP32")


@pytest.mark.parametrize(
    ("source", "is_triton"),
    [
        ("import triton_python_backend_utils as pb_utils\n\nclass TritonPythonModel:\n    pass", True),
        ("from implementation import TritonPythonModel", True),
        ("class TritonPythonModel:\n    pass", True),
        ("class Model(nn.Module):\n    pass\n\n\nclass TritonPythonModel:\n    pass", True),
        (
            "import triton_python_backend_utils as pb_utils\nfrom a import TritonPythonModel\n\nclass Model:\n    pass",
            True,
        ),
        ("from triton_python_backend_utils import Tensor\n\nclass Model:\n    pass", True),
        ("class Model:\n    pass  # import triton_python_backend_utils", False),
        ("class Model:\n    def infer(self, inputs):\n        return inputs", False),
        ("# like TritonPythonModel\nclass Model:\n    pass", False),
        ("class MyTritonPythonModels:\n    pass", False),
        ("\udcff", False),
    ],
)
def test_whose_model_a_file_is(tmp_path: Path, source: str, is_triton: bool) -> None:
    path = tmp_path / "model.py"
    path.write_bytes(source.encode("utf-8", "surrogateescape"))
    assert is_triton_model(path) is is_triton


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert not is_triton_model(tmp_path / "none.py")


@pytest.mark.parametrize(
    ("groups", "instance", "kind", "name", "device"),
    [
        ('instance_group { name: "m" count: 1 }', 0, "CPU", "m_0", "0"),
        ('instance_group { name: "m_0" count: 2 kind: KIND_CPU }', 1, "CPU", "m_0_1", "0"),
        (
            'instance_group { name: "a" count: 2 } instance_group { name: "b" count: 1 kind: KIND_MODEL }',
            2,
            "MODEL",
            "b_0",
            "0",
        ),
        ('instance_group { name: "a" count: 1 kind: KIND_GPU }', 0, "GPU", "a_0", "0"),
        ('instance_group { name: "a" count: 2 kind: KIND_GPU gpus: [ 1, 3 ] }', 1, "GPU", "a_0", "3"),
        ('instance_group { name: "a" count: 2 kind: KIND_GPU gpus: [ 1, 3 ] }', 2, "GPU", "a_1", "1"),
        ('instance_group { name: "a" count: 1 gpus: 2 } instance_group { name: "b" count: 1 }', 0, "GPU", "a_0", "2"),
        ('instance_group { name: "a" count: 1 gpus: 2 } instance_group { name: "b" count: 1 }', 1, "CPU", "b_0", "0"),
        ("", 3, "CPU", "m_3", "0"),
    ],
)
def test_instances(make_context: MakeContext, groups: str, instance: int, kind: str, name: str, device: str) -> None:
    made = model_context(replace(make_context(FLOATS + groups), instance=instance), "model.py")
    assert [made.args[f"model_instance_{key}"] for key in ("kind", "name", "device_id")] == [kind, name, device]


def test_everything_is_text(make_context: MakeContext, tmp_path: Path) -> None:
    made = model_context(make_context(FLOATS, version="3"), "model.py")
    assert all(isinstance(value, str) for value in made.args.values())
    assert (made.args["model_name"], made.args["model_version"]) == ("m", "3")
    assert made.args["model_repository"] == str(tmp_path.parent)
    assert made.outputs == ("y",)
    assert not made.decoupled


def test_the_configuration_has_numbers_as_numbers_and_every_field(make_context: MakeContext) -> None:
    context = make_context(
        FLOATS
        + """
        version_policy { specific { versions: [ 2, 3 ] } }
        dynamic_batching { max_queue_delay_microseconds: 100 priority_levels: 2 }
        """
    )
    config = json.loads(config_json(context.config))
    assert config["input"][0]["dims"] == [-1]
    assert config["version_policy"]["specific"]["versions"] == [2, 3]
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    assert config["max_batch_size"] == 0
    assert config["optimization"]["input_pinned_memory"] == {"enable": True}
    assert not context.config.HasField("optimization")


def test_an_environment_of_its_own_is_refused(make_context: MakeContext) -> None:
    with pytest.raises(ConfigError, match=r'/config\.pbtxt: parameters\["EXECUTION_ENV_PATH"\]: expected none'):
        model_context(make_context(FLOATS + parameter("EXECUTION_ENV_PATH", "/env.tar.gz")), "model.py")
