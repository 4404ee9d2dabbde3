"""Completion fills in what a configuration leaves out, describes it, and never overrides a stated value."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from model_files import WriteOnnx
from onnx import TensorProto, helper, save
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.completion import complete, model_file
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.configuration.validation import validate


def completed(directory: Path, text: str = "") -> tuple[model_config_pb2.ModelConfig, tuple[str, ...]]:
    config, stated = parse_text(text, "config.pbtxt")
    versions = {int(path.name): path for path in directory.iterdir() if path.name.isdigit()}
    before = config.SerializeToString(deterministic=True)
    result, assumed = complete(config, directory, versions, max_batch_size_stated=stated)
    assert config.SerializeToString(deterministic=True) == before
    return result, assumed


def refusal(directory: Path, text: str = "") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        completed(directory, text)
    return caught.value


def test_an_onnx_file_alone_is_enough(tmp_path: Path, write_onnx: WriteOnnx) -> None:
    write_onnx(tmp_path / "mlp" / "1" / "model.onnx")
    config, assumed = completed(tmp_path / "mlp")
    validate(config, "config.pbtxt")
    assert config == text_format.Parse(
        """
        name: "mlp" backend: "onnxruntime" platform: "onnxruntime_onnx" default_model_filename: "model.onnx"
        max_batch_size: 32 dynamic_batching { } version_policy { latest { num_versions: 1 } }
        input { name: "X" data_type: TYPE_FP32 dims: 16 } output { name: "Y" data_type: TYPE_FP32 dims: 16 }
        instance_group { name: "mlp" count: 1 }
        """,
        model_config_pb2.ModelConfig(),
    )
    assert assumed == (
        "assumed name 'mlp' from the directory",
        "assumed backend 'onnxruntime' from the file model.onnx",
        "assumed max_batch_size 32 with dynamic_batching, since every tensor of model.onnx"
        " has a dynamic first dimension",
        "assumed input 'X' FP32[-1, 16] from model.onnx",
        "assumed output 'Y' FP32[-1, 16] from model.onnx",
        "assumed version_policy latest 1",
        "assumed one instance",
    )


@pytest.mark.parametrize("shape", [[1, 16], [4, "n"], ["n", 2]])
def test_one_fixed_first_dimension_means_no_batching(
    tmp_path: Path, write_onnx: WriteOnnx, shape: list[int | str]
) -> None:
    tensors = [("X", "Y", TensorProto.FLOAT, shape), ("A", "B", TensorProto.INT64, [3, "k"])]
    write_onnx(tmp_path / "m" / "1" / "model.onnx", tensors)
    config, assumed = completed(tmp_path / "m")
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert list(config.input[0].dims) == [size if isinstance(size, int) else -1 for size in shape]
    assert list(config.input[1].dims) == [3, -1]
    assert any("max_batch_size 0 (no batching), since the first dimension of" in line for line in assumed)


def test_every_datatype_and_a_missing_dimension(tmp_path: Path, write_onnx: WriteOnnx) -> None:
    kinds = {
        "BOOL": TensorProto.BOOL,
        "UINT8": TensorProto.UINT8,
        "INT64": TensorProto.INT64,
        "FP16": TensorProto.FLOAT16,
        "FP64": TensorProto.DOUBLE,
        "STRING": TensorProto.STRING,
        "BF16": TensorProto.BFLOAT16,
    }
    tensors = [(f"in_{name}", f"out_{name}", kind, [None, 2]) for name, kind in kinds.items()]
    write_onnx(tmp_path / "m" / "1" / "model.onnx", tensors)
    config, _ = completed(tmp_path / "m")
    assert config.max_batch_size == 32
    names = [model_config_pb2.DataType.Name(tensor.data_type) for tensor in config.input]
    assert names == [f"TYPE_{name}" for name in kinds]


def test_tensors_without_dimensions_become_one_element_reshaped(tmp_path: Path, write_onnx: WriteOnnx) -> None:
    write_onnx(tmp_path / "rows" / "1" / "model.onnx", [("X", "Y", TensorProto.FLOAT, ["n"])])
    write_onnx(tmp_path / "scalar" / "1" / "model.onnx", [("X", "Y", TensorProto.FLOAT, [])])
    for name, batch in (("rows", 32), ("scalar", 0)):
        config, _ = completed(tmp_path / name)
        validate(config, "config.pbtxt")
        assert config.max_batch_size == batch
        assert list(config.input[0].dims) == [1]
        assert config.input[0].HasField("reshape")
        assert list(config.input[0].reshape.shape) == []


@pytest.mark.parametrize(
    ("text", "batch", "dims"),
    [
        ("max_batch_size: 0", 0, [-1, 16]),
        ("max_batch_size: 4", 4, [16]),
        ('output { name: "Y" data_type: TYPE_FP32 dims: [ -1, 16 ] }', 0, [-1, 16]),
        ('max_batch_size: 2 input { name: "X" }', 2, [16]),
    ],
)
def test_what_is_stated_stays(tmp_path: Path, write_onnx: WriteOnnx, text: str, batch: int, dims: list[int]) -> None:
    write_onnx(tmp_path / "m" / "1" / "model.onnx")
    config, assumed = completed(tmp_path / "m", text)
    assert config.max_batch_size == batch
    assert not config.HasField("dynamic_batching")
    assert list(config.input[0].dims) == dims
    assert config.input[0].data_type == model_config_pb2.TYPE_FP32
    assert not any("max_batch_size" in line for line in assumed)


def test_a_whole_configuration_does_not_open_the_file(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.onnx").write_bytes(b"not onnx at all")
    tensors = """
        input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }
        instance_group { count: 3 kind: KIND_CPU } version_policy { all { } } name: "m"
    """
    config, assumed = completed(directory, tensors)
    assert assumed == ("assumed backend 'onnxruntime' from the file model.onnx",)
    assert (config.instance_group[0].count, config.instance_group[0].name) == (3, "m_0")
    error = refusal(directory)
    assert error.where == str(directory / "1" / "model.onnx")
    assert (error.key, error.expected) == ("file", "a readable onnx model")
    assert "INVALID_PROTOBUF" in error.given


def test_the_newest_version_is_read(tmp_path: Path, write_onnx: WriteOnnx) -> None:
    write_onnx(tmp_path / "m" / "2" / "model.onnx", [("old", "Y", TensorProto.FLOAT, ["n", 1])])
    write_onnx(tmp_path / "m" / "10" / "model.onnx", [("new", "Y", TensorProto.FLOAT, ["n", 1])])
    assert completed(tmp_path / "m")[0].input[0].name == "new"


def test_control_inputs_and_states_are_not_requested(tmp_path: Path, write_onnx: WriteOnnx) -> None:
    tensors = [(name, f"{name}_out", TensorProto.FLOAT, ["n", 1]) for name in ("X", "START", "STATE")]
    write_onnx(tmp_path / "m" / "1" / "model.onnx", tensors)
    config, assumed = completed(
        tmp_path / "m",
        """
        sequence_batching {
          control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
          state { input_name: "STATE" output_name: "STATE_out" data_type: TYPE_FP32 dims: 1 }
        }
        """,
    )
    validate(config, "config.pbtxt")
    assert [tensor.name for tensor in config.input] == ["X"]
    assert [tensor.name for tensor in config.output] == ["X_out", "START_out"]
    assert config.max_batch_size == 32
    assert config.WhichOneof("scheduling_choice") == "sequence_batching"
    assert config.sequence_batching.HasField("direct")
    assert config.sequence_batching.max_sequence_idle_microseconds == 1_000_000
    assert "assumed the direct strategy of sequence_batching" in assumed


@pytest.mark.parametrize(
    ("files", "text", "backend", "file"),
    [
        (["model.py"], "", "python", "model.py"),
        (["model.pt"], "", "pytorch", "model.pt"),
        (["model.pt", "model.pt2"], "", "pytorch", "model.pt2"),
        (["model.py", "model.pt"], 'backend: "torch"', "pytorch", "model.pt"),
        (["net.pt2"], 'default_model_filename: "net.pt2"', "pytorch", "net.pt2"),
        ([], 'backend: "python"', "python", "model.py"),
        (["model.py", "model.txt", "xgboost.json"], "", "python", "model.py"),
        (["model.txt", "xgboost.json"], 'backend: "fil"', "fil", "xgboost.json"),
        (
            ["model.txt", "xgboost.json"],
            'backend: "fil" parameters { key: "model_type" value { string_value: "lightgbm" } }',
            "fil",
            "model.txt",
        ),
        (["model.txt"], 'backend: "fil" parameters { key: "model_type" value { } }', "fil", "model.txt"),
        ([], 'backend: "identity"', "identity", ""),
        ([], "ensemble_scheduling { }", "ensemble", ""),
    ],
)
def test_backends_from_files(tmp_path: Path, files: list[str], text: str, backend: str, file: str) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    for name in files:
        (version / name).write_bytes(b"")
    config, _ = completed(tmp_path / "m", text)
    assert (config.backend, config.default_model_filename) == (backend, file)
    assert bool(config.instance_group) is (backend != "ensemble")


def test_model_file_looks_into_a_directory_of_that_name(tmp_path: Path, write_onnx: WriteOnnx) -> None:
    path = write_onnx(tmp_path / "m" / "1" / "model.onnx" / "model.onnx")
    config, _ = completed(tmp_path / "m")
    assert model_file(config, tmp_path / "m" / "1") == path
    assert config.input[0].name == "X"


def test_files_that_do_not_tell_the_backend(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    error = refusal(tmp_path / "m")
    assert (error.where, error.key) == (str(tmp_path / "m" / "config.pbtxt"), "backend")
    assert "model.onnx, model.pt2, model.pt, model.py, model.xml in" in error.expected
    assert error.given == "none, and no files"
    (version / "weights.bin").write_bytes(b"")
    assert refusal(tmp_path / "m").given == "none, and weights.bin"
    (version / "model.py").write_bytes(b"")
    (version / "model.pt").write_bytes(b"")
    error = refusal(tmp_path / "m")
    assert (error.key, error.given) == ("backend", "files model.pt, model.py")
    assert error.expected == "to be stated, since the files fit several"


def test_files_and_configuration_that_disagree(tmp_path: Path, write_onnx: WriteOnnx) -> None:
    path = write_onnx(tmp_path / "m" / "1" / "model.onnx", [("X", "Y", TensorProto.FLOAT, [3, 4])])
    error = refusal(tmp_path / "m", "max_batch_size: 8")
    assert (error.where, error.key) == (str(path), "input 'X'")
    assert error.expected == "a dynamic first dimension, since max_batch_size is 8"
    assert error.given == "shape [3, 4]"
    error = refusal(tmp_path / "m", 'input { name: "Q" }')
    assert (error.key, error.given) == ("input[0].name", "'Q'")
    assert error.expected.startswith("one of X")


def test_a_missing_file_or_an_unservable_type(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    error = refusal(tmp_path / "m", 'backend: "onnxruntime"')
    assert (error.where, error.given) == (str(version / "model.onnx"), "no such file")
    source = helper.make_tensor_sequence_value_info("X", TensorProto.FLOAT, [1])
    target = helper.make_tensor_sequence_value_info("Y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["X"], ["Y"])], "g", [source], [target])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    save(model, str(version / "model.onnx"))
    error = refusal(tmp_path / "m")
    assert (error.key, error.given) == ("input 'X'", "seq(tensor(float))")
    assert "FP32" in error.expected


def test_a_version_that_vanishes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        complete(model_config_pb2.ModelConfig(), tmp_path, {1: tmp_path / "1"})
    assert str(caught.value) == (
        f"{tmp_path / '1'}: version: expected a readable directory, given No such file or directory"
    )
