"""Writes the chosen option, or several divisions, as two model repositories, one for each tier.

Everything is written into a directory beside the target, which is renamed as the last step: an interrupted command
leaves no repository that looks complete.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from isochrone.errors import AlreadyExists
from isochrone.models.configuration.divided_models import MODELS, PROBE
from isochrone.models.divisions import CORE, DIVISIONS_FILE, EDGE, Division, Divisions, write_divisions
from isochrone.optimize.partitioning.facts import TensorFacts
from isochrone.optimize.partitioning.link_measuring import probe_model
from isochrone.optimize.partitioning.planning import Plan, Planned
from isochrone.optimize.partitioning.stages import Stages
from isochrone.protocol.tensors.datatypes import name_of

Tensors = Mapping[str, TensorFacts]
#: Parameters of a remote model that name certificates: ``ca``, ``cert``, ``key``.
NO_FILES: Mapping[str, str] = {}


def check_target(target: Path) -> None:
    if target.exists():
        raise AlreadyExists(f"{target} exists: name another directory, or remove it")


def write_repositories(
    target: Path,
    name: str,
    model: Any,
    plan: Plan,
    chosen: Planned,
    endpoints: Sequence[str],
    max_batch_size: int,
    certificates: Mapping[str, str] = NO_FILES,
) -> None:
    """Writes ``target/edge`` and ``target/core``; the model is called ``name`` on the edge, whatever was chosen."""
    with _whole(target) as made:
        _Writer(made, name, model, plan, endpoints, max_batch_size, certificates).write(chosen)


def write_divisions_of(
    target: Path,
    name: str,
    model: Any,
    plan: Plan,
    kept: Sequence[Planned],
    endpoints: Sequence[str],
    max_batch_size: int,
    certificates: Mapping[str, str] = NO_FILES,
) -> None:
    """The same with a model for each division; ``name`` is a divided model, and the first division serves at first."""
    with _whole(target) as made:
        _Writer(made, name, model, plan, endpoints, max_batch_size, certificates).write_all(kept)


def edge_bytes(planned: Planned, model: Any) -> int:
    """Of the files that a division needs on the edge."""
    if planned.stages is not None:
        return int(planned.stages.first.ByteSize())
    return int(model.ByteSize()) if planned.division == EDGE else 0


def files_of(planned: Planned) -> str:
    """The name of a division's files: a cut has the same stages with compression and without."""
    if planned.stages is None:
        return ""
    return planned.division.removesuffix(f"-{planned.compression}") if planned.compression else planned.division


def core_bytes(planned: Planned, model: Any) -> int:
    if planned.stages is not None:
        return int(planned.stages.second.ByteSize())
    return int(model.ByteSize()) if planned.division == CORE else 0


def division_model(name: str, division: str) -> str:
    """The name of the model that runs a division of the model ``name``."""
    return f"{name}.{division}"


def core_model(name: str) -> str:
    """The name in the core of what the remote model ``name`` on the edge reaches. The two differ, since a model of a
    fleet has the same files on all workers."""
    return f"{name}.{CORE}"


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A directory that becomes ``target`` when it is complete."""
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield made
        made.chmod(0o755)
        made.rename(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


class _Writer:
    def __init__(
        self,
        directory: Path,
        name: str,
        model: Any,
        plan: Plan,
        endpoints: Sequence[str],
        max_batch_size: int,
        certificates: Mapping[str, str],
    ) -> None:
        self._edge, self._core = directory / EDGE, directory / CORE
        self._name, self._model = name, model
        self._link = plan.link
        self._endpoints = endpoints
        self._certificates = certificates
        self._compression = ""
        #: Files of stages → the name of the division's model that they were written for.
        self._written: dict[str, str] = {}
        self._given = {each: plan.facts[each] for each in plan.inputs}
        self._made = {each: plan.facts[each] for each in plan.outputs}
        everything = (*self._given.values(), *self._made.values())
        self._rows = max_batch_size if all(each.rows_first for each in everything) else 0

    def write(self, chosen: Planned) -> None:
        self._make_directories()
        self._write_division(self._name, chosen)

    def write_all(self, kept: Sequence[Planned]) -> None:
        self._make_directories()
        divisions = []
        for each in kept:
            own, option = division_model(self._name, each.division), each.option
            is_shared = files_of(each) in self._written
            self._write_division(own, each)
            divisions.append(
                Division(
                    each.division,
                    own,
                    round(max(0.0, option.edge_seconds - option.coding_seconds) * 1e9),
                    round(option.core_seconds * 1e9),
                    option.sent_bytes,
                    option.received_bytes,
                    0 if is_shared else edge_bytes(each, self._model),
                    round(option.coding_seconds * 1e9),
                )
            )
        config = self._config(self._name, self._given, self._made)
        config.backend = "divided"
        config.parameters[MODELS].string_value = ",".join(each.model for each in divisions)
        if any(each.uses_link for each in divisions):
            config.parameters[PROBE].string_value = self._write_probe()
        _write_model(self._edge, config, None)
        content = write_divisions(Divisions(divisions[0].name, self._link, tuple(divisions)))
        (self._edge / self._name / "1" / DIVISIONS_FILE).write_bytes(content)

    def _write_probe(self) -> str:
        """A model that measures the bandwidth, on both tiers."""
        name = f"{self._name}.probe"
        there = core_model(name)
        for directory, own, backend, model in (
            (self._core, there, "onnxruntime", probe_model()),
            (self._edge, name, "remote", None),
        ):
            config = model_config_pb2.ModelConfig(name=own, backend=backend)
            config.input.add(name="x", data_type="TYPE_FP32", dims=[-1])
            config.output.add(name="y", data_type="TYPE_FP32", dims=[1])
            if model is None:
                self._address(config)
                config.parameters["remote_model"].string_value = there
            _write_model(directory, config, model)
        return name

    def _address(self, config: Any) -> None:
        """Of the core, in the configuration of a remote model."""
        config.parameters["endpoints"].string_value = ",".join(self._endpoints)
        for key, file in self._certificates.items():
            config.parameters[key].string_value = file

    def _make_directories(self) -> None:
        for directory in (self._edge, self._core):
            directory.mkdir()

    def _write_division(self, name: str, planned: Planned) -> None:
        self._compression = planned.compression
        if planned.stages is not None:
            self._write_stages(name, planned.stages, self._written.setdefault(files_of(planned), name))
        elif planned.division == EDGE:
            self._write(self._edge, name, "onnxruntime", self._given, self._made, self._model)
        else:
            there = core_model(name)
            self._write(self._core, there, "onnxruntime", self._given, self._made, self._model)
            self._write(self._edge, name, "remote", self._given, self._made, remote_model=there)

    def _write_stages(self, name: str, stages: Stages, owner: str) -> None:
        """``owner``: the model that has the stages; another one only sends what crosses in its own way."""
        first, second, remote = f"{owner}_1", core_model(f"{owner}_2"), f"{name}_2"
        between = _facts_of(stages.second.graph.input)
        own = {value.name: self._given[value.name] for value in stages.first.graph.input}
        self._write(self._edge, remote, "remote", between, self._made, remote_model=second)
        if name == owner:
            self._write_both(first, second, own, between, stages)
        config = self._config(name, self._given, self._made)
        config.platform = "ensemble"
        for model, inputs, outputs in ((first, own, between), (remote, between, self._made)):
            step = config.ensemble_scheduling.step.add(model_name=model, model_version=-1)
            step.input_map.update({tensor: tensor for tensor in inputs})
            step.output_map.update({tensor: tensor for tensor in outputs})
        _write_model(self._edge, config, None)

    def _write_both(self, first: str, second: str, own: Tensors, between: Tensors, stages: Stages) -> None:
        self._write(self._edge, first, "onnxruntime", own, between, stages.first)
        # A warm-up with zeros has 1 for each free dimension, and zeros are no shapes: a stage may fail with either.
        sizes = [each.dims[1:] if self._rows else each.dims for each in between.values()]
        numbers = self._rows > 0 or all(each.dtype.kind == "f" for each in between.values())
        zeros_fit = numbers and all(None not in dims for dims in sizes)
        self._write(self._core, second, "onnxruntime", between, self._made, stages.second, zeros_fit)

    def _write(
        self,
        directory: Path,
        name: str,
        backend: str,
        inputs: Tensors,
        outputs: Tensors,
        model: Any = None,
        warm_up: bool = True,
        remote_model: str = "",
    ) -> None:
        config = self._config(name, inputs, outputs)
        config.backend = backend
        if backend == "remote":
            self._address(config)
            config.parameters["remote_model"].string_value = remote_model
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
