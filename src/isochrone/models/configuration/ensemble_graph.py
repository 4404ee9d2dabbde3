"""Validation of an ensemble's steps as a graph.

Tensors are the edges: each is an input of the ensemble or an output of exactly one step, the inputs of every step
exist, there is no cycle, every tensor is used, and every output of the ensemble is produced. ``ensemble_steps`` checks
the models of the steps when they are loaded.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Any

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.divided_models import is_divided, needed_models


def step_names(config: model_config_pb2.ModelConfig) -> tuple[str, ...]:
    """The models of an ensemble's steps or of a divided model's divisions, each once; empty for any other model."""
    if is_divided(config):
        return needed_models(config)
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def validate_ensemble(config: model_config_pb2.ModelConfig, where: str) -> None:
    steps = config.ensemble_scheduling.step
    if not steps:
        raise ConfigError(where, "ensemble_scheduling.step", "at least one step", "none")
    producers = {tensor.name: f"input[{index}]" for index, tensor in enumerate(config.input)}
    produced_by: dict[str, int] = {}
    for index, step in enumerate(steps):
        key = f"ensemble_scheduling.step[{index}]"
        _validate_step(step, config.name, key, where)
        for name, tensor in sorted(step.output_map.items()):
            if tensor in producers:
                expected = f"a tensor that is not already made by {producers[tensor]}"
                raise ConfigError(where, f"{key}.output_map['{name}']", expected, f"'{tensor}'")
            producers[tensor] = key
            produced_by[tensor] = index
    used: set[str] = set()
    for index, step in enumerate(steps):
        for name, tensor in sorted(step.input_map.items()):
            if tensor not in producers:
                key = f"ensemble_scheduling.step[{index}].input_map['{name}']"
                expected = f"a tensor the ensemble has ({', '.join(sorted(producers))})"
                raise ConfigError(where, key, expected, f"'{tensor}'")
            used.add(tensor)
    for index, tensor in enumerate(config.input):
        if tensor.name not in used:
            expected = "an input that some step's input_map uses"
            raise ConfigError(where, f"input[{index}].name", expected, f"'{tensor.name}'")
    for index, tensor in enumerate(config.output):
        if tensor.name not in produced_by:
            expected = f"a tensor that some step's output_map makes ({', '.join(sorted(produced_by))})"
            raise ConfigError(where, f"output[{index}].name", expected, f"'{tensor.name}'")
    _validate_acyclic(steps, produced_by, where)
    used.update(tensor.name for tensor in config.output)
    for index, step in enumerate(steps):
        for name, tensor in sorted(step.output_map.items()):
            if tensor not in used:
                key = f"ensemble_scheduling.step[{index}].output_map['{name}']"
                expected = "a tensor that another step's input_map or the ensemble's output uses"
                raise ConfigError(where, key, expected, f"'{tensor}'")


def _validate_step(step: Any, ensemble: str, key: str, where: str) -> None:
    if not step.model_name:
        raise ConfigError(where, f"{key}.model_name", "a model name", "''")
    if step.model_name == ensemble:
        raise ConfigError(where, f"{key}.model_name", "a model other than the ensemble itself", f"'{ensemble}'")
    # proto3 gives 0 where the version is left out; Triton's files write -1 for the latest.
    if step.model_version < -1:
        expected = "-1 (by version policy) or a version of at least 1"
        raise ConfigError(where, f"{key}.model_version", expected, str(step.model_version))
    for map_name in ("input_map", "output_map"):
        mapping = getattr(step, map_name)
        if not mapping:
            raise ConfigError(where, f"{key}.{map_name}", "at least one entry", "none")
        for name, tensor in mapping.items():
            if not name or not tensor:
                expected = "a tensor name of the model as key and of the ensemble as value"
                raise ConfigError(where, f"{key}.{map_name}", expected, f"'{name}': '{tensor}'")


def _validate_acyclic(steps: Any, produced_by: dict[str, int], where: str) -> None:
    graph = {
        index: {produced_by[tensor] for tensor in step.input_map.values() if tensor in produced_by}
        for index, step in enumerate(steps)
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        around = " -> ".join(f"step[{index}] {steps[index].model_name}" for index in error.args[1])
        raise ConfigError(where, "ensemble_scheduling.step", "steps without a cycle", around) from None
