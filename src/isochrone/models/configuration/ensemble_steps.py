"""Whether the models of an ensemble's steps fit its tensors and each other. Pure.

The catalog checks this before it serves an ensemble, and again when a step changes: only then are the models'
configurations known. ``ensemble_graph`` has validated the graph before. Rules and messages are Triton's, since its
users match them. Where sizes are free, a shape may still be wrong at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import model_config_pb2

from isochrone.errors import InvalidArgument
from isochrone.models.configuration.tensor_rules import data_type_name
from isochrone.models.shapes import shown

_FREE = -1


@dataclass(frozen=True, slots=True)
class _Tensor:
    """An ensemble tensor, as the first model that uses it declares it."""

    model: str
    data_type: int
    dims: tuple[int, ...]
    #: With the batch dimension, if the model has one.
    full_dims: tuple[int, ...]


def check_steps(
    config: model_config_pb2.ModelConfig, models: Sequence[model_config_pb2.ModelConfig]
) -> model_config_pb2.ModelConfig:
    """The ensemble's configuration, decoupled or not as its steps determine. Raises ``InvalidArgument``.

    ``models`` holds the configuration of each step's model.
    """
    tensors: dict[str, _Tensor] = {}
    for declared in (*config.input, *config.output):
        dims = declared.reshape.shape if declared.HasField("reshape") else declared.dims
        tensors.setdefault(declared.name, _tensor(config, declared.data_type, dims))
    steps = config.ensemble_scheduling.step
    for step, model in zip(steps, models, strict=True):
        if 0 < model.max_batch_size < config.max_batch_size:
            raise InvalidArgument(
                f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model"
                f" {step.model_name} which only allows maximum batch size to be {model.max_batch_size}"
            )
        _check_inputs(config.name, step, model, tensors)
        _check_outputs(config.name, step, model, tensors)
    decoupled = _is_decoupled(config, models)
    if decoupled == config.model_transaction_policy.decoupled:
        return config
    decided = model_config_pb2.ModelConfig()
    decided.CopyFrom(config)
    decided.model_transaction_policy.decoupled = decoupled
    return decided


def _tensor(config: model_config_pb2.ModelConfig, data_type: int, dims: Sequence[int]) -> _Tensor:
    own = tuple(dims)
    return _Tensor(config.name, data_type, own, (_FREE, *own) if config.max_batch_size > 0 else own)


def _check_inputs(ensemble: str, step: Any, model: model_config_pb2.ModelConfig, tensors: dict[str, _Tensor]) -> None:
    declared = {tensor.name: tensor for tensor in model.input}
    for name, tensor in sorted(step.input_map.items()):
        if name not in declared:
            raise InvalidArgument(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing input {name} in model"
                f" {step.model_name}"
            )
    for name, each in declared.items():
        if name in step.input_map:
            _agree(ensemble, step.input_map[name], _tensor(model, each.data_type, each.dims), tensors)
        elif not each.optional:
            raise InvalidArgument(
                f"in ensemble {ensemble}, input {name} in model {step.model_name} is not mapped to any ensemble tensors"
            )


def _check_outputs(ensemble: str, step: Any, model: model_config_pb2.ModelConfig, tensors: dict[str, _Tensor]) -> None:
    declared = {tensor.name: tensor for tensor in model.output}
    for name, tensor in sorted(step.output_map.items()):
        if name not in declared:
            raise InvalidArgument(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapped from non-existing output {name} in model"
                f" {step.model_name}"
            )
        _agree(ensemble, tensor, _tensor(model, declared[name].data_type, declared[name].dims), tensors)


def _agree(ensemble: str, name: str, given: _Tensor, tensors: dict[str, _Tensor]) -> None:
    known = tensors.setdefault(name, given)
    where = f"in ensemble {ensemble}, ensemble tensor {name}: "
    if known.data_type != given.data_type:
        raise InvalidArgument(
            f"{where}inconsistent data type: {data_type_name(known.data_type)} is inferred from model {known.model}"
            f" while {data_type_name(given.data_type)} is inferred from model {given.model}"
        )
    # A model without batching may use [-1, 4] where a model with batching uses rows of [4].
    if not _match(known.dims, given.dims) and not _match(known.full_dims, given.full_dims):
        raise InvalidArgument(
            f"{where}inconsistent shape: {shown(known.full_dims)} is inferred from model {known.model} while"
            f" {shown(given.full_dims)} is inferred from model {given.model}"
        )


def _match(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(
        left == right or _FREE in (left, right) for left, right in zip(one, other, strict=True)
    )


def _is_decoupled(config: model_config_pb2.ModelConfig, models: Sequence[model_config_pb2.ModelConfig]) -> bool:
    """Whether the ensemble may return any number of responses.

    A step joins tensors of the same response of a decoupled step. Tensors from two decoupled steps, or from one and
    from outside it, cannot be joined.
    """
    #: Ensemble tensor → the decoupled step that it originates from; 0: none.
    origins: dict[str, int] = {tensor.name: 0 for tensor in config.input}
    waiting = list(enumerate(zip(config.ensemble_scheduling.step, models, strict=True), start=1))
    while waiting:
        ready = [each for each in waiting if all(tensor in origins for tensor in each[1][0].input_map.values())]
        if not ready:  # a cycle, which ``ensemble_graph`` rejects
            break
        for number, (step, model) in ready:
            origin = _common_origin(config.name, step.model_name, step.input_map.values(), origins)
            made = number if model.model_transaction_policy.decoupled else origin
            origins.update((tensor, made) for tensor in step.output_map.values())
        waiting = [each for each in waiting if each not in ready]
    return _common_origin(config.name, config.name, [tensor.name for tensor in config.output], origins) > 0


def _common_origin(ensemble: str, model: str, tensors: Any, origins: dict[str, int]) -> int:
    found = {origins[tensor] for tensor in tensors if tensor in origins}
    if len(found) > 1:
        raise InvalidArgument(
            f"in ensemble {ensemble}, step of model '{model}' receives inputs originated from different decoupled"
            " models"
        )
    return found.pop() if found else 0
