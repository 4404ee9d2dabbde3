"""Writes the chosen option as two model repositories, one for each tier.

Everything is written into a directory beside the target, which is renamed as the last step: an interrupted command
leaves no repository that looks complete.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from isochrone.errors import AlreadyExists
from isochrone.optimize.partitioning.facts import TensorFacts
from isochrone.optimize.partitioning.planning import CORE, EDGE, Plan, Planned
from isochrone.optimize.partitioning.stages import Stages
from isochrone.protocol.tensors.datatypes import name_of

Tensors = Mapping[str, TensorFacts]


def check_target(target: Path) -> None:
    if target.exists():
        raise AlreadyExists(f"{target} exists: name another directory, or remove it")


def write_repositories(
    target: Path, name: str, model: Any, plan: Plan, chosen: Planned, endpoints: Sequence[str], max_batch_size: int
) -> None:
    """Writes ``target/edge`` and ``target/core``; the model is called ``name`` on the edge, whatever was chosen."""
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _Writer(made, name, model, plan, endpoints, max_batch_size).write(chosen)
        made.chmod(0o755)
        made.rename(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


class _Writer:
    def __init__(
        self, directory: Path, name: str, model: Any, plan: Plan, endpoints: Sequence[str], max_batch_size: int
    ) -> None:
        self._edge, self._core = directory / EDGE, directory / CORE
        self._name, self._model = name, model
        self._endpoints = endpoints
        self._compression = ""
        self._given = {each: plan.facts[each] for each in plan.inputs}
        self._made = {each: plan.facts[each] for each in plan.outputs}
        everything = (*self._given.values(), *self._made.values())
        self._rows = max_batch_size if all(each.rows_first for each in everything) else 0

    def write(self, chosen: Planned) -> None:
        self._compression = chosen.compression
        for directory in (self._edge, self._core):
            directory.mkdir()
        if chosen.stages is not None:
            self._write_stages(chosen.stages)
        elif chosen.option.name == EDGE:
            self._write(self._edge, self._name, "onnxruntime", self._given, self._made, self._model)
        else:
            self._write(self._core, self._name, "onnxruntime", self._given, self._made, self._model)
            self._write(self._edge, self._name, "remote", self._given, self._made)

    def _write_stages(self, stages: Stages) -> None:
        first, second = f"{self._name}_1", f"{self._name}_2"
        between = _facts_of(stages.second.graph.input)
        own = {value.name: self._given[value.name] for value in stages.first.graph.input}
        self._write(self._edge, first, "onnxruntime", own, between, stages.first)
        self._write(self._edge, second, "remote", between, self._made)
        # A warm-up with zeros has 1 for each free dimension, and zeros are no shapes: a stage may fail with either.
        sizes = [each.dims[1:] if self._rows else each.dims for each in between.values()]
        numbers = self._rows > 0 or all(each.dtype.kind == "f" for each in between.values())
        zeros_fit = numbers and all(None not in dims for dims in sizes)
        self._write(self._core, second, "onnxruntime", between, self._made, stages.second, zeros_fit)
        config = self._config(self._name, self._given, self._made)
        config.platform = "ensemble"
        for model, inputs, outputs in ((first, own, between), (second, between, self._made)):
            step = config.ensemble_scheduling.step.add(model_name=model, model_version=-1)
            step.input_map.update({tensor: tensor for tensor in inputs})
            step.output_map.update({tensor: tensor for tensor in outputs})
        _write_model(self._edge, config, None)

    def _write(
        self,
        directory: Path,
        name: str,
        backend: str,
        inputs: Tensors,
        outputs: Tensors,
        model: Any = None,
        warm_up: bool = True,
    ) -> None:
        config = self._config(name, inputs, outputs)
        config.backend = backend
        if backend == "remote":
            config.parameters["endpoints"].string_value = ",".join(self._endpoints)
            if self._compression:
                config.parameters["compression"].string_value = self._compression
        else:
            _reshape_singles(config, {**inputs, **outputs}, batched=self._rows > 0)
            if not warm_up:
                config.parameters["auto_warmup"].string_value = "false"
        _write_model(directory, config, model)

    def _config(self, name: str, inputs: Tensors, outputs: Tensors) -> Any:
        config = model_config_pb2.ModelConfig(name=name, max_batch_size=self._rows)
        for declared, tensors in ((config.input, inputs), (config.output, outputs)):
            for tensor, known in tensors.items():
                dims = known.dims[1:] if self._rows else known.dims
                shape = [-1 if dim is None else dim for dim in dims]
                declared.add(name=tensor, data_type=f"TYPE_{_type(known)}", dims=shape or [1])
        return config


def _reshape_singles(config: Any, tensors: Tensors, batched: bool) -> None:
    """Configurations have no empty dims: a server shows one element where the model has no dimension."""
    for tensor in (*config.input, *config.output):
        if len(tensors[tensor.name].dims) == batched:
            tensor.reshape.SetInParent()


def _type(known: TensorFacts) -> str:
    datatype = name_of(known.dtype)
    return "STRING" if datatype == "BYTES" else datatype


def _facts_of(values: Any) -> dict[str, TensorFacts]:
    """What the stages declare between them."""
    from onnx import helper

    return {
        value.name: TensorFacts(
            helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
            tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in value.type.tensor_type.shape.dim),
            0,
        )
        for value in values
    }


def _write_model(repository: Path, config: Any, model: Any) -> None:
    version = repository / config.name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(text_format.MessageToString(config))
    if model is not None:
        (version / "model.onnx").write_bytes(model.SerializeToString())
