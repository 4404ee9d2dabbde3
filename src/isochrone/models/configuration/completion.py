"""Completes a configuration from the names and contents of the model's files.

It runs after parsing and before validation, once per load. It describes every assumption in a sentence for the log. It
never overrides a value that the file states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.backends import BACKENDS, WITHOUT_INSTANCES, backend_name, default_model_files
from isochrone.models.configuration.generation_signature import complete_generation
from isochrone.models.file_tensors import Declared, FileTensor
from isochrone.models.onnx_file import read_onnx_tensors
from isochrone.models.openvino_file import read_openvino_tensors
from isochrone.models.signature import DATA_TYPE_BY_OIP_NAME
from isochrone.models.unnamed_tensors import chosen_names

# Large enough that onnxruntime on a CPU gains little from more rows, small enough to limit the memory of activations.
ASSUMED_MAX_BATCH_SIZE = 32
# Triton's default: an idle sequence loses its slot after a second.
ASSUMED_SEQUENCE_IDLE_MICROSECONDS = 1_000_000

#: Backends whose files declare their tensors.
_READERS: dict[str, Callable[[Path], Declared]] = {"onnx": read_onnx_tensors, "openvino": read_openvino_tensors}


def complete(
    config: model_config_pb2.ModelConfig,
    directory: Path,
    versions: Mapping[int, Path],
    *,
    max_batch_size_stated: bool = False,
    where: str | None = None,
    assumed_batch_sizes: Mapping[str, int] | None = None,
) -> tuple[model_config_pb2.ModelConfig, tuple[str, ...]]:
    """A completed copy of ``config``, and the sentences that describe its assumptions.

    ``directory`` is the model's; ``versions`` are those to be served, with their directories. Tensors are read from the
    newest version. ``assumed_batch_sizes`` are the server's, by backend; "" applies to all.
    """
    where = where or str(directory / "config.pbtxt")
    completed = model_config_pb2.ModelConfig()
    completed.CopyFrom(config)
    assumed: list[str] = []
    if not completed.name:
        completed.name = directory.name
        assumed.append(f"assumed name '{directory.name}' from the directory")
    newest = versions[max(versions)] if versions else None
    backend = _complete_backend(completed, newest, where, assumed)
    read = _READERS.get(backend)
    if read is not None and newest is not None:
        sizes = assumed_batch_sizes or {}
        size = sizes.get(backend, sizes.get("", ASSUMED_MAX_BATCH_SIZE))
        stated = max_batch_size_stated or not size
        if backend == "openvino" and completed.max_batch_size > 0:
            read = _with_free_rows(read)
        _complete_from_file(completed, read, model_file(completed, newest), stated, size, where, assumed)
    if backend == "generation":
        complete_generation(completed, where, assumed)
    _complete_policies(completed, backend, assumed)
    return completed, tuple(assumed)


def model_file(config: model_config_pb2.ModelConfig, version_directory: Path) -> Path:
    """The file that the backend of a completed configuration loads."""
    path = version_directory / str(config.default_model_filename)
    # In Triton, model.onnx may be a directory with the file and its external weights.
    return path / path.name if path.is_dir() else path


def _complete_backend(config: model_config_pb2.ModelConfig, newest: Path | None, where: str, assumed: list[str]) -> str:
    stated = bool(config.backend or config.platform or config.HasField("ensemble_scheduling"))
    present = _present_files(newest)
    if stated:
        backend = backend_name(config, where)
    else:
        backend = _backend_from_files(config, present, newest, where)
    names = default_model_files(backend, config)
    if names and not config.default_model_filename:
        config.default_model_filename = next((name for name in names if name in present), names[0])
    config.backend = BACKENDS[backend].names[0]
    config.platform = config.platform or BACKENDS[backend].platforms[0]
    if not stated:
        assumed.append(f"assumed backend '{config.backend}' from the file {config.default_model_filename}")
    return backend


def _present_files(newest: Path | None) -> frozenset[str]:
    if newest is None:
        return frozenset()
    try:
        return frozenset(entry.name for entry in newest.iterdir())
    except OSError as error:
        raise ConfigError(str(newest), "version", "a readable directory", error.strerror or str(error)) from None


def _backend_from_files(
    config: model_config_pb2.ModelConfig, present: frozenset[str], newest: Path | None, where: str
) -> str:
    files = {backend: entry.files for backend, entry in BACKENDS.items() if entry.told_by_file}
    if config.default_model_filename:
        suffix = Path(config.default_model_filename).suffix
        for backend, names in files.items():
            if suffix in {Path(name).suffix for name in names}:
                return backend
    found = [backend for backend, names in files.items() if present.intersection(names)]
    if len(found) == 1:
        return found[0]
    known = [name for names in files.values() for name in names]
    if found:
        given = ", ".join(sorted(present.intersection(known)))
        raise ConfigError(where, "backend", "to be stated, since the files fit several", f"files {given}")
    given = ", ".join(sorted(present)) or "no files"
    expected = f"to be stated, or one of {', '.join(known)} in {newest}"
    raise ConfigError(where, "backend", expected, f"none, and {given}")


def _complete_from_file(
    config: model_config_pb2.ModelConfig,
    read: Callable[[Path], Declared],
    path: Path,
    stated: bool,
    batch_size: int,
    where: str,
    assumed: list[str],
) -> None:
    """Completes inputs, outputs and the batch size from what the model's file declares."""
    groups = (config.input, config.output)
    if all(group and all(tensor.data_type and tensor.dims for tensor in group) for group in groups):
        return
    sequence = config.sequence_batching
    # The sequence batcher fills control inputs and state; requests never carry them.
    internal_inputs = {control.name for control in sequence.control_input}
    internal_inputs.update(state.input_name for state in sequence.state)
    internal_outputs = {state.output_name for state in sequence.state}
    all_inputs, all_outputs = read(path)
    all_inputs = _with_chosen_names("input", all_inputs, config.input)
    all_outputs = _with_chosen_names("output", all_outputs, config.output)
    inputs = [tensor for tensor in all_inputs if tensor.name not in internal_inputs]
    outputs = [tensor for tensor in all_outputs if tensor.name not in internal_outputs]

    undeclared = not config.input and not config.output
    if undeclared and not stated and config.max_batch_size == 0:
        _assume_batching(config, (*all_inputs, *all_outputs), batch_size, path, assumed)
    _complete_tensors(config, "input", inputs, path, where, assumed)
    _complete_tensors(config, "output", outputs, path, where, assumed)


def _with_chosen_names(kind: str, tensors: Sequence[FileTensor], declared: Sequence[Any]) -> tuple[FileTensor, ...]:
    """The tensors, with the configuration's names for those that the file leaves unnamed."""
    own = [(tensor.name,) if tensor.is_named else () for tensor in tensors]
    chosen = chosen_names(kind, own, [tensor.name for tensor in declared])
    return tuple(replace(tensor, name=chosen.get(number, tensor.name)) for number, tensor in enumerate(tensors))


def _with_free_rows(read: Callable[[Path], Declared]) -> Callable[[Path], Declared]:
    """The tensors of a file whose first dimension the backend sets itself, as OpenVINO's does."""

    def read_free(path: Path) -> Declared:
        inputs, outputs = (
            tuple(replace(tensor, shape=(-1, *tensor.shape[1:])) if tensor.shape else tensor for tensor in tensors)
            for tensors in read(path)
        )
        return inputs, outputs

    return read_free


def _assume_batching(
    config: model_config_pb2.ModelConfig,
    tensors: Sequence[FileTensor],
    batch_size: int,
    path: Path,
    assumed: list[str],
) -> None:
    fixed = [tensor.name for tensor in tensors if not tensor.shape or tensor.shape[0] != -1]
    if fixed or not tensors:
        why = f"since the first dimension of '{fixed[0]}' is not dynamic in {path.name}" if fixed else "without tensors"
        assumed.append(f"assumed max_batch_size 0 (no batching), {why}")
        return
    config.max_batch_size = batch_size
    batcher = ""
    if config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()
        batcher = " with dynamic_batching"
    assumed.append(
        f"assumed max_batch_size {batch_size}{batcher}, since every tensor of {path.name} has a dynamic first dimension"
    )


def _complete_tensors(
    config: model_config_pb2.ModelConfig,
    key: str,
    tensors: Sequence[FileTensor],
    path: Path,
    where: str,
    assumed: list[str],
) -> None:
    declared = getattr(config, key)
    if not declared:
        for tensor in tensors:
            _fill_tensor(declared.add(name=tensor.name), tensor, config.max_batch_size, key, path)
        names = ", ".join(f"'{tensor.name}' {tensor.datatype}{list(tensor.shape)}" for tensor in tensors)
        assumed.append(f"assumed {key} {names} from {path.name}")
        return
    by_name = {tensor.name: tensor for tensor in tensors}
    for index, partial in enumerate(declared):
        if partial.data_type and partial.dims:
            continue
        known = by_name.get(partial.name)
        if known is None:
            expected = f"one of {', '.join(sorted(by_name))} (from {path})"
            raise ConfigError(where, f"{key}[{index}].name", expected, f"'{partial.name}'")
        _fill_tensor(partial, known, config.max_batch_size, key, path)
        assumed.append(f"assumed datatype and dims of {key} '{partial.name}' from {path.name}")


def _fill_tensor(partial: Any, tensor: FileTensor, max_batch_size: int, key: str, path: Path) -> None:
    partial.data_type = partial.data_type or DATA_TYPE_BY_OIP_NAME[tensor.datatype]
    if partial.dims:
        return
    shape = tensor.shape
    if max_batch_size > 0:
        if not shape or shape[0] != -1:
            expected = f"a dynamic first dimension, since max_batch_size is {max_batch_size}"
            raise ConfigError(str(path), f"{key} '{tensor.name}'", expected, f"shape {list(shape)}")
        shape = shape[1:]
    if shape:
        partial.dims.extend(shape)
    else:
        # ModelConfig has no empty dims: as in Triton, one element that is reshaped to no dimension.
        partial.dims.append(1)
        partial.reshape.SetInParent()


def _complete_policies(config: model_config_pb2.ModelConfig, backend: str, assumed: list[str]) -> None:
    if config.version_policy.WhichOneof("policy_choice") is None:
        config.version_policy.latest.num_versions = 1
        assumed.append("assumed version_policy latest 1")
    if backend not in WITHOUT_INSTANCES:
        if not config.instance_group:
            config.instance_group.add(count=1, name=config.name)
            assumed.append("assumed one instance")
        for index, group in enumerate(config.instance_group):
            group.name = group.name or f"{config.name}_{index}"
            group.count = group.count or 1
    if config.HasField("sequence_batching"):
        sequence = config.sequence_batching
        if sequence.max_sequence_idle_microseconds == 0:
            sequence.max_sequence_idle_microseconds = ASSUMED_SEQUENCE_IDLE_MICROSECONDS
            assumed.append(f"assumed max_sequence_idle_microseconds {ASSUMED_SEQUENCE_IDLE_MICROSECONDS}")
        if sequence.WhichOneof("strategy_choice") is None:
            sequence.direct.SetInParent()
            assumed.append("assumed the direct strategy of sequence_batching")
