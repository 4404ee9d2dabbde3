"""Rejects a configuration that cannot be served, before anything is loaded.

It runs on completed configurations, once per load. Errors name the file, the key, the expected and the given value.
Features of Triton that Isochrone lacks (ragged batches, repository agents) are rejected too, never silently ignored.
"""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.backends import WITHOUT_INSTANCES, backend_name
from isochrone.models.configuration.divided_models import validate_divided
from isochrone.models.configuration.ensemble_graph import validate_ensemble
from isochrone.models.configuration.scheduling_rules import validate_dynamic_batching, validate_sequence_batching
from isochrone.models.configuration.tensor_rules import (
    data_type_name,
    validate_concrete_dims,
    validate_data_type,
    validate_relative_path,
    validate_tensors,
)

_KIND = model_config_pb2.ModelInstanceGroup
_CPU_PROVIDER = "CPUExecutionProvider"


def validate(config: model_config_pb2.ModelConfig, where: str) -> None:
    """Raises ``ConfigError`` for the first key of ``config`` that cannot be served; ``where`` is its file."""
    if not config.name:
        raise ConfigError(where, "name", "a model name", "''")
    backend = backend_name(config, where)
    if config.max_batch_size < 0:
        raise ConfigError(where, "max_batch_size", "an integer of at least 0", str(config.max_batch_size))
    _validate_unsupported(config, where)
    _validate_file_names(config, where)
    if not config.input and not config.sequence_batching.control_input and not config.sequence_batching.state:
        raise ConfigError(where, "input", f"at least one input (backend {backend} cannot be asked)", "none")
    if not config.output:
        raise ConfigError(where, "output", f"at least one output (backend {backend} cannot be asked)", "none")
    validate_tensors(config.input, "input", where)
    validate_tensors(config.output, "output", where)
    _validate_versions(config.version_policy, where)
    _validate_instances(config, backend, where)
    if config.HasField("dynamic_batching"):
        validate_dynamic_batching(config, where)
    elif config.HasField("sequence_batching"):
        validate_sequence_batching(config, where)
    if backend == "ensemble":
        validate_ensemble(config, where)
    if backend == "remote":
        _validate_remote(config, where)
    if backend == "divided":
        validate_divided(config, where)
    _validate_response_cache(config, where)
    _validate_warmup(config, where)


def _validate_unsupported(config: model_config_pb2.ModelConfig, where: str) -> None:
    for key in ("batch_input", "batch_output"):
        if len(getattr(config, key)):
            raise ConfigError(where, f"{key}[0]", "no entry: ragged batches are not served", "one")
    for index, tensor in enumerate(config.input):
        if tensor.allow_ragged_batch:
            raise ConfigError(
                where, f"input[{index}].allow_ragged_batch", "false: ragged batches are not served", "true"
            )
    for kind, tensors in (("input", config.input), ("output", config.output)):
        for index, tensor in enumerate(tensors):
            for key in ("is_shape_tensor", "is_non_linear_format_io"):
                if getattr(tensor, key):
                    raise ConfigError(
                        where, f"{kind}[{index}].{key}", "false: only TensorRT engines have these", "true"
                    )
    if config.model_repository_agents.agents:
        given = f"'{config.model_repository_agents.agents[0].name}'"
        key = "model_repository_agents.agents[0]"
        raise ConfigError(where, key, "none: repository agents are not run", given)


def _validate_file_names(config: model_config_pb2.ModelConfig, where: str) -> None:
    if config.default_model_filename:
        validate_relative_path(config.default_model_filename, "default_model_filename", where)
    for index, output in enumerate(config.output):
        if output.label_filename:
            validate_relative_path(output.label_filename, f"output[{index}].label_filename", where)


def _validate_versions(policy: model_config_pb2.ModelVersionPolicy, where: str) -> None:
    choice = policy.WhichOneof("policy_choice")
    if choice == "latest" and policy.latest.num_versions < 1:
        raise ConfigError(where, "version_policy.latest.num_versions", "an integer of at least 1", "0")
    if choice == "specific":
        if not policy.specific.versions:
            raise ConfigError(where, "version_policy.specific.versions", "at least one version", "none")
        for index, version in enumerate(policy.specific.versions):
            if version < 1:
                key = f"version_policy.specific.versions[{index}]"
                raise ConfigError(where, key, "an integer of at least 1", str(version))


def _validate_instances(config: model_config_pb2.ModelConfig, backend: str, where: str) -> None:
    if backend in WITHOUT_INSTANCES and config.instance_group:
        kind = {"ensemble": "an ensemble", "remote": "a remote model"}.get(backend, "a divided model")
        raise ConfigError(where, "instance_group", f"none: {kind} has no instances of its own", "one")
    for index, group in enumerate(config.instance_group):
        key = f"instance_group[{index}]"
        if group.count < 1:
            raise ConfigError(where, f"{key}.count", "an integer of at least 1", str(group.count))
        if group.kind not in _KIND.Kind.values():
            raise ConfigError(where, f"{key}.kind", f"one of {', '.join(_KIND.Kind.keys())}", str(group.kind))
        if group.kind in (_KIND.KIND_CPU, _KIND.KIND_MODEL) and group.gpus:
            kind = _KIND.Kind.Name(group.kind)
            raise ConfigError(where, f"{key}.gpus", f"none, since kind is {kind}", str(list(group.gpus)))
        for position, gpu in enumerate(group.gpus):
            if gpu < 0:
                raise ConfigError(where, f"{key}.gpus[{position}]", "a device number of at least 0", str(gpu))
        if group.kind == _KIND.KIND_GPU or group.gpus:
            _validate_gpu(config, backend, group, key, where)
        if group.secondary_devices:
            raise ConfigError(where, f"{key}.secondary_devices", "none: only TensorRT engines use them", "one")


def _validate_remote(config: model_config_pb2.ModelConfig, where: str) -> None:
    """What only the server that computes the model can do."""
    for key in ("dynamic_batching", "sequence_batching"):
        if config.HasField(key):
            raise ConfigError(where, key, "none: the server that computes a remote model batches", "one")
    if config.model_transaction_policy.decoupled:
        expected = "false: a remote model returns one answer to each request"
        raise ConfigError(where, "model_transaction_policy.decoupled", expected, "true")
    if config.response_cache.enable:
        expected = "false: the server that computes a remote model may change it; cache answers there"
        raise ConfigError(where, "response_cache.enable", expected, "true")
    if config.model_warmup:
        raise ConfigError(where, "model_warmup", "none: the server that computes a remote model warms it up", "one")


def _validate_gpu(config: model_config_pb2.ModelConfig, backend: str, group: Any, key: str, where: str) -> None:
    """onnxruntime runs a group on GPUs by the execution providers for them; code chooses itself."""
    if backend in ("python", "torch", "generation"):
        return
    named = config.parameters["providers"].string_value if "providers" in config.parameters else ""
    names = [name for name in named.replace(" ", "").split(",") if name]
    if backend != "onnx" or names == [_CPU_PROVIDER]:
        key, given = (f"{key}.kind", "KIND_GPU") if group.kind == _KIND.KIND_GPU else (f"{key}.gpus", "a GPU")
        expected = (
            "KIND_CPU or KIND_AUTO without gpus: models of this backend run on the CPU, and so do onnx models whose"
            ' parameters["providers"] name no execution provider for a GPU. Change instance_group in this file; or'
            " leave it, put the changed copy into configs/cpu.pbtxt beside it and start with --model-config-name cpu;"
            " or load the model with a 'config' parameter"
        )
        raise ConfigError(where, key, expected, given)
    if names and any(gpu != 0 for gpu in group.gpus):
        expected = (
            'none or 0, since parameters["providers"] is given; name another device as device_id in'
            ' parameters["provider_options"]'
        )
        raise ConfigError(where, f"{key}.gpus", expected, str(list(group.gpus)))


def _validate_response_cache(config: model_config_pb2.ModelConfig, where: str) -> None:
    if not config.response_cache.enable:
        return
    if config.model_transaction_policy.decoupled:
        raise ConfigError(where, "response_cache.enable", "false, since the model is decoupled", "true")
    if config.HasField("sequence_batching"):
        expected = "false, since answers of a sequence depend on its earlier requests"
        raise ConfigError(where, "response_cache.enable", expected, "true")


def _validate_warmup(config: model_config_pb2.ModelConfig, where: str) -> None:
    inputs = {tensor.name: tensor for tensor in config.input}
    for index, sample in enumerate(config.model_warmup):
        key = f"model_warmup[{index}]"
        if not sample.name:
            raise ConfigError(where, f"{key}.name", "a name for the sample", "''")
        largest = max(config.max_batch_size, 1)
        if sample.batch_size > largest:
            raise ConfigError(where, f"{key}.batch_size", f"an integer from 0 to {largest}", str(sample.batch_size))
        for name, tensor in sample.inputs.items():
            _validate_warmup_input(tensor, inputs.get(name), name, f"{key}.inputs['{name}']", where, inputs)
        for name, declared in inputs.items():
            if name not in sample.inputs and not declared.optional:
                given = ", ".join(sorted(sample.inputs)) or "none"
                raise ConfigError(where, f"{key}.inputs", f"an entry for input '{name}'", given)


def _validate_warmup_input(tensor: Any, declared: Any, name: str, key: str, where: str, inputs: dict[str, Any]) -> None:
    if declared is None:
        raise ConfigError(where, key, f"one of the inputs {', '.join(inputs)}", f"'{name}'")
    if tensor.data_type != declared.data_type:
        validate_data_type(tensor.data_type, f"{key}.data_type", where)
        expected, given = data_type_name(declared.data_type), data_type_name(tensor.data_type)
        raise ConfigError(where, f"{key}.data_type", expected, given)
    validate_concrete_dims(tensor.dims, declared.dims, f"{key}.dims", where)
    choice = tensor.WhichOneof("input_data_type")
    if choice is None:
        raise ConfigError(where, key, "one of zero_data, random_data, input_data_file", "none")
    if choice == "input_data_file":
        validate_relative_path(tensor.input_data_file, f"{key}.input_data_file", where)
