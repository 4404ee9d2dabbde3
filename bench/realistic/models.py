"""The models of the realistic cells: perceptrons of three costs with and without batching, fifty copies, sequences, and
models that hand tensors of three sizes back. Every server runs the same onnx files."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from bench.worker.models import INPUT, MAX_BATCH, OUTPUT, Perceptron, batching, build, instance_group, tensors

WIDTH = 64
COPIES = 50
#: By name: onnxruntime takes about 20, 260 and 850 µs for one row on a quiet Neoverse core, with one thread.
COSTS = {
    "small": Perceptron("small", WIDTH, (128, 128), 20),
    "medium": Perceptron("medium", WIDTH, (1280, 1280), 260),
    "large": Perceptron("large", WIDTH, (1664, 1664, 1664), 850),
}
BATCHED = "_batched"
SEQUENCES = "sequences"
#: By name: floats in and out.
SIZES = {"tensor_4kb": 1 << 10, "tensor_600kb": 150_000, "tensor_6mb": 1_500_000}


@dataclass(frozen=True)
class Model:
    """One model of the repository."""

    name: str
    file: Path
    config: str


def write_files(directory: Path) -> dict[str, Path]:
    """The onnx files, by name; a file that is there already stays."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in (*COSTS, *SIZES):
        path = files[name] = directory / f"{name}.onnx"
        if not path.exists():
            model = build(COSTS[name]) if name in COSTS else _identity(SIZES[name])
            partial = path.with_suffix(".partial")
            partial.write_bytes(model.SerializeToString(deterministic=True))
            partial.replace(path)
    return files


def _identity(width: int) -> onnx.ModelProto:
    shape = ["N", width]
    graph = helper.make_graph(
        [helper.make_node("Identity", [INPUT], [OUTPUT])],
        "identity",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def models(files: dict[str, Path]) -> Iterator[Model]:
    """Every model, as configured for our worker and for Triton alike."""
    for name in COSTS:
        yield _model(name, files[name], WIDTH)
        yield _model(name + BATCHED, files[name], WIDTH, batching(None))
    for number in range(COPIES):
        yield _model(f"copy_{number:02}", files["small"], WIDTH)
    yield _model(SEQUENCES, files["small"], WIDTH, "sequence_batching { max_sequence_idle_microseconds: 5000000 }\n")
    for name, width in SIZES.items():
        yield _model(name, files[name], width)


def _model(name: str, file: Path, width: int, section: str = "") -> Model:
    threads = 'parameters { key: "intra_op_thread_count" value: { string_value: "1" } }\n'
    head = f'name: "{name}"\nbackend: "onnxruntime"\nmax_batch_size: {MAX_BATCH}\n'
    return Model(name, file, f"{head}{tensors(str(width))}{section}{instance_group(1)}{threads}")


def write_repository(directory: Path, files: dict[str, Path]) -> Path:
    """Every model, in Triton's layout."""
    return _write_models(directory, models(files))


def write_copies(directory: Path, file: Path, count: int) -> Path:
    """So many copies of the smallest model: copy_000 and so on."""
    return _write_models(directory, (_model(f"copy_{number:03}", file, WIDTH) for number in range(count)))


def write_identity(directory: Path, name: str) -> Path:
    """One model that hands `WIDTH` floats back."""
    directory.mkdir(parents=True)
    file = directory.parent / f"{name}.onnx"
    file.write_bytes(_identity(WIDTH).SerializeToString(deterministic=True))
    return _write_models(directory, [_model(name, file, WIDTH)])


def _write_models(directory: Path, chosen: Iterable[Model]) -> Path:
    for model in chosen:
        version = directory / model.name / "1"
        version.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model.file, version / "model.onnx")
        (directory / model.name / "config.pbtxt").write_text(model.config)
    return directory
