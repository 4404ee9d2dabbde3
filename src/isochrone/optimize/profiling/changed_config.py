"""A model's configuration with other instances, threads and preferred batches. Changes nothing of the given one."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import model_config_pb2

from isochrone.models.configuration.backends import backend_name
from isochrone.optimize.thread_parameters import set_threads


def with_instances(config: Any, threads: int, instances: int) -> model_config_pb2.ModelConfig:
    """One group of so many instances, on the CPU, each with so many threads where its backend lets it choose."""
    changed = model_config_pb2.ModelConfig()
    changed.CopyFrom(config)
    group = model_config_pb2.ModelInstanceGroup(kind=model_config_pb2.ModelInstanceGroup.KIND_CPU)
    if config.instance_group:
        # Its host policy and its resources stay.
        group.CopyFrom(config.instance_group[0])
    group.count = instances
    del changed.instance_group[:]
    changed.instance_group.append(group)
    set_threads(changed, backend_name(config), threads)
    return changed


def without_warm_up(config: Any) -> model_config_pb2.ModelConfig:
    """A load then runs nothing: each configuration runs the one size that is measured."""
    changed = model_config_pb2.ModelConfig()
    changed.CopyFrom(config)
    changed.parameters["auto_warmup"].string_value = "false"
    del changed.model_warmup[:]
    return changed


def with_preferred_batch(config: Any, batch: int) -> model_config_pb2.ModelConfig:
    """Requests share batches, of that size if possible. A batch of 1 needs no batching, and adds none."""
    changed = model_config_pb2.ModelConfig()
    changed.CopyFrom(config)
    if batch > 1:
        changed.dynamic_batching.preferred_batch_size[:] = [batch]
    elif changed.HasField("dynamic_batching"):
        del changed.dynamic_batching.preferred_batch_size[:]
    return changed
