"""The models of one ``isochrone.serve``, as the worker's catalog reads a model repository.

There are no files: a description's code is an object, and its configuration is made from options.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonclient.grpc import model_config_pb2

from isochrone.errors import Unsupported
from isochrone.in_process.tensor_types import TensorType
from isochrone.models.configuration.completion import complete
from isochrone.models.configuration.validation import validate
from isochrone.models.repository.description import ModelDescription, ModelEntry, ModelObject
from isochrone.models.repository.repository import Repository, unknown_model
from isochrone.models.signature import DATA_TYPE_BY_OIP_NAME, signature_of
from isochrone.models.sources.progress import Report

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors

#: Models of code have one version.
VERSION = 1


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The settings of a model's configuration."""

    name: str
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    batch: int
    instances: int
    deadline_ms: float | None
    decoupled: bool
    parameters: Mapping[str, str]


def configuration(settings: ModelSettings) -> model_config_pb2.ModelConfig:
    """The completed configuration of a model of code."""
    config = model_config_pb2.ModelConfig(
        name=settings.name,
        backend="python",
        max_batch_size=settings.batch,
        instance_group=[{"count": settings.instances}],
    )
    for group, types in ((config.input, settings.inputs), (config.output, settings.outputs)):
        for name, type_ in types.items():
            # ModelConfig has no empty dims: one element, which the model gets and returns without an axis.
            tensor = group.add(name=name, data_type=DATA_TYPE_BY_OIP_NAME[type_.datatype], dims=type_.dims or (1,))
            if not type_.dims:
                tensor.reshape.SetInParent()
    if settings.decoupled:
        config.model_transaction_policy.decoupled = True
    elif settings.batch:
        config.dynamic_batching.SetInParent()
    for key, value in settings.parameters.items():
        config.parameters[key].string_value = value
    if settings.deadline_ms is not None:
        config.parameters["deadline_ms"].string_value = repr(settings.deadline_ms)
    return complete(config, Path.cwd(), {}, max_batch_size_stated=True)[0]


def describe(
    settings: ModelSettings, make: Any, directory: Path, example: Tensors | None, learned: bool, where: str
) -> ModelDescription:
    """The validated description of a model of code. ``learned``: its outputs are those that a call gave."""
    config = configuration(settings)
    validate(config, where)
    if example is not None:
        # As requests carry them: a tensor without an axis is one element.
        example = {name: array if array.ndim else array.reshape(1) for name, array in example.items()}
    # The code is in no file: no other process serves the same.
    source = "as its first call returned" if learned else "as outputs declares"
    own = ModelObject(make, uuid.uuid4().hex, example, source)
    return ModelDescription(
        name=settings.name,
        directory=directory,
        config=config,
        signature=signature_of(config, {}),
        assumed=(),
        versions={VERSION: directory},
        ignored=(),
        model_object=own,
        stated_source=where,
    )


class GivenModels(Repository):
    """Models of code, by name."""

    def __init__(self, descriptions: Sequence[ModelDescription]) -> None:
        super().__init__(())
        self._descriptions = {each.name: each for each in descriptions}

    def scan(self) -> dict[str, ModelEntry]:
        return {
            name: ModelEntry(name, each.directory, (VERSION,), "", {VERSION: ""})
            for name, each in self._descriptions.items()
        }

    def read(
        self,
        name: str,
        config_json: str | None = None,
        files: Mapping[str, bytes] | None = None,
        versions: Sequence[int] | None = None,
        report: Report = lambda text: None,
    ) -> ModelDescription:
        if config_json is not None or files or versions:
            raise Unsupported(f"model '{name}' is served from code: it is loaded as it is, without parameters")
        if name not in self._descriptions:
            raise unknown_model(name)
        return self._descriptions[name]

    def steps(self, name: str, config_json: str | None = None) -> tuple[str, ...]:
        return ()
