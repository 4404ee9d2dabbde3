"""What the configuration of a divided model states: the models of its divisions, and whether they fit. Pure.

The names are in config.pbtxt, so that the order of loads is known from configurations alone; the figures are in
``divisions.json``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError, InvalidArgument

#: The parameters with the models of the divisions, and with a remote model that measures the bandwidth of the link.
MODELS = "models"
PROBE = "probe"

_FREE = -1


def is_divided(config: model_config_pb2.ModelConfig) -> bool:
    return bool(config.backend == "divided")


def division_models(config: model_config_pb2.ModelConfig) -> tuple[str, ...]:
    text = config.parameters[MODELS].string_value if MODELS in config.parameters else ""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def probe_model(config: model_config_pb2.ModelConfig) -> str:
    """ "": none."""
    return config.parameters[PROBE].string_value.strip() if PROBE in config.parameters else ""


def needed_models(config: model_config_pb2.ModelConfig) -> tuple[str, ...]:
    """The models that are loaded before it."""
    probe = probe_model(config)
    return tuple(dict.fromkeys((*division_models(config), *((probe,) if probe else ()))))


def validate_divided(config: model_config_pb2.ModelConfig, where: str) -> None:
    names = needed_models(config)
    if not division_models(config):
        expected = "the models of its divisions, with commas: detector.edge,detector.core"
        raise ConfigError(where, f'parameters["{MODELS}"]', expected, "none")
    if config.name in names:
        key = PROBE if probe_model(config) == config.name else MODELS
        raise ConfigError(where, f'parameters["{key}"]', "models other than the divided model itself", config.name)
    for key in ("dynamic_batching", "sequence_batching"):
        if config.HasField(key):
            raise ConfigError(where, key, "none: the models of the divisions batch", "one")
    if config.model_transaction_policy.decoupled:
        expected = "false: a divided model returns one answer to each request"
        raise ConfigError(where, "model_transaction_policy.decoupled", expected, "true")
    if config.model_warmup:
        raise ConfigError(where, "model_warmup", "none: the models of the divisions have warm-ups", "one")


def check_division(
    config: model_config_pb2.ModelConfig,
    model: model_config_pb2.ModelConfig,
    steps: Iterable[model_config_pb2.ModelConfig] = (),
) -> None:
    """Raises ``InvalidArgument`` if requests to the divided model do not fit the model of a division; ``steps`` are the
    models that it runs, if it is an ensemble, and those that they run."""
    for each in (model, *steps):
        if each.HasField("sequence_batching"):
            expected = (
                f"none: the model belongs to a division of '{config.name}', and a sequence would lose its state with a "
                "move to another division"
            )
            raise ConfigError(f"model '{each.name}'", "sequence_batching", expected, "one")
    where = f"divided model '{config.name}' and '{model.name}', the model of a division"
    if model.model_transaction_policy.decoupled:
        raise InvalidArgument(f"{where}: the division must not be decoupled")
    if (config.max_batch_size > 0) != (model.max_batch_size > 0) or model.max_batch_size < config.max_batch_size:
        raise InvalidArgument(
            f"{where}: max_batch_size is {config.max_batch_size}, and the division's is {model.max_batch_size}"
        )
    for kind, own, theirs in (("input", config.input, model.input), ("output", config.output, model.output)):
        declared = {tensor.name: tensor for tensor in theirs}
        for tensor in own:
            if tensor.name not in declared:
                raise InvalidArgument(f"{where}: the division has no {kind} '{tensor.name}'")
            if not _fit(tensor, declared[tensor.name]):
                raise InvalidArgument(f"{where}: type or dims of {kind} '{tensor.name}' differ")
    known = {tensor.name for tensor in config.input}
    for tensor in model.input:
        if tensor.name not in known and not tensor.optional:
            raise InvalidArgument(f"{where}: the divided model has no input '{tensor.name}', which the division needs")


def _fit(one: Any, other: Any) -> bool:
    return (
        one.data_type == other.data_type
        and len(one.dims) == len(other.dims)
        and all(left == right or _FREE in (left, right) for left, right in zip(one.dims, other.dims, strict=True))
    )
