"""Validation of dynamic and sequence batching.

The worker's queue and sequence batcher rely on every rule here and check none of them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.tensor_rules import (
    data_type_name,
    validate_concrete_dims,
    validate_data_type,
    validate_dims,
    validate_relative_path,
)

_CONTROL = model_config_pb2.ModelSequenceBatching.Control
_QUEUE = model_config_pb2.ModelQueuePolicy
_CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def validate_dynamic_batching(config: model_config_pb2.ModelConfig, where: str) -> None:
    batching = config.dynamic_batching
    _validate_preferred(batching.preferred_batch_size, config.max_batch_size, "dynamic_batching", where)
    levels, default = batching.priority_levels, batching.default_priority_level
    if levels and not 1 <= default <= levels:
        key = "dynamic_batching.default_priority_level"
        raise ConfigError(where, key, f"an integer from 1 to {levels} (priority_levels)", str(default))
    if not levels and default:
        key = "dynamic_batching.default_priority_level"
        raise ConfigError(where, key, "0, since priority_levels is not set", str(default))
    for level in sorted(batching.priority_queue_policy):
        if not 1 <= level <= levels:
            expected = f"a key from 1 to {levels} (priority_levels)" if levels else "none without priority_levels"
            raise ConfigError(where, "dynamic_batching.priority_queue_policy", expected, str(level))
    if batching.preserve_ordering:
        _validate_ordering(batching, where)


def _validate_ordering(batching: Any, where: str) -> None:
    """Rejects settings that reorder requests."""
    if batching.priority_levels > 1:
        expected = "at most 1, since preserve_ordering is true"
        raise ConfigError(where, "dynamic_batching.priority_levels", expected, str(batching.priority_levels))
    policies = {"dynamic_batching.default_queue_policy": batching.default_queue_policy}
    for level, policy in batching.priority_queue_policy.items():
        policies[f"dynamic_batching.priority_queue_policy[{level}]"] = policy
    for key, policy in policies.items():
        if policy.timeout_action == _QUEUE.DELAY:
            raise ConfigError(where, f"{key}.timeout_action", "REJECT, since preserve_ordering is true", "DELAY")


def _validate_preferred(sizes: Sequence[int], max_batch_size: int, prefix: str, where: str) -> None:
    largest = max(max_batch_size, 1)
    for index, size in enumerate(sizes):
        if not 1 <= size <= largest:
            expected = f"an integer from 1 to {largest} (max_batch_size)"
            raise ConfigError(where, f"{prefix}.preferred_batch_size[{index}]", expected, str(size))


def validate_sequence_batching(config: model_config_pb2.ModelConfig, where: str) -> None:
    sequence = config.sequence_batching
    if sequence.iterative_sequence:
        raise ConfigError(where, "sequence_batching.iterative_sequence", "false: it is not supported", "true")
    if sequence.HasField("oldest"):
        if sequence.oldest.max_candidate_sequences < 1:
            key = "sequence_batching.oldest.max_candidate_sequences"
            given = str(sequence.oldest.max_candidate_sequences)
            raise ConfigError(where, key, "an integer of at least 1", given)
        sizes = sequence.oldest.preferred_batch_size
        _validate_preferred(sizes, config.max_batch_size, "sequence_batching.oldest", where)
    if sequence.HasField("direct") and not 0.0 <= sequence.direct.minimum_slot_utilization <= 1.0:
        key = "sequence_batching.direct.minimum_slot_utilization"
        raise ConfigError(where, key, "a number from 0 to 1", str(sequence.direct.minimum_slot_utilization))
    taken = {tensor.name: f"input[{index}]" for index, tensor in enumerate(config.input)}
    _validate_controls(sequence, taken, where)
    _validate_states(sequence, taken, where)


def _take(name: str, key: str, taken: dict[str, str], where: str) -> None:
    if not name:
        raise ConfigError(where, key, "a tensor name", "''")
    if name in taken:
        raise ConfigError(where, key, f"a name other than that of {taken[name]}", f"'{name}'")
    taken[name] = key.rpartition(".")[0]


def _validate_controls(sequence: Any, taken: dict[str, str], where: str) -> None:
    kinds: dict[int, str] = {}
    for index, control_input in enumerate(sequence.control_input):
        key = f"sequence_batching.control_input[{index}]"
        _take(control_input.name, f"{key}.name", taken, where)
        if len(control_input.control) != 1:
            expected = "exactly one control"
            raise ConfigError(where, f"{key}.control", expected, str(len(control_input.control)))
        control = control_input.control[0]
        key = f"{key}.control[0]"
        if control.kind in kinds:
            expected = f"a kind other than that of {kinds[control.kind]}"
            raise ConfigError(where, f"{key}.kind", expected, _CONTROL.Kind.Name(control.kind))
        kinds[control.kind] = key
        if control.kind == _CONTROL.CONTROL_SEQUENCE_CORRID:
            _validate_correlation(control, key, where)
        else:
            _validate_flag(control, key, where)


_FLAG_KEYS = ("int32_false_true", "fp32_false_true", "bool_false_true")


def _validate_correlation(control: Any, key: str, where: str) -> None:
    given = data_type_name(control.data_type)
    if given not in _CORRELATION_TYPES:
        raise ConfigError(where, f"{key}.data_type", f"one of {', '.join(_CORRELATION_TYPES)}", given)
    for name in _FLAG_KEYS:
        if values := list(getattr(control, name)):
            raise ConfigError(where, f"{key}.{name}", "none for CONTROL_SEQUENCE_CORRID", str(values))


def _validate_flag(control: Any, key: str, where: str) -> None:
    present = [name for name in _FLAG_KEYS if getattr(control, name)]
    if len(present) != 1:
        given = ", ".join(present) or "none"
        raise ConfigError(where, key, f"exactly one of {', '.join(_FLAG_KEYS)}", given)
    values = list(getattr(control, present[0]))
    if len(values) != 2:
        raise ConfigError(where, f"{key}.{present[0]}", "two values, for false and for true", str(values))
    if control.data_type:
        given = data_type_name(control.data_type)
        raise ConfigError(where, f"{key}.data_type", "none: it follows from the values", given)


def _validate_states(sequence: Any, taken: dict[str, str], where: str) -> None:
    outputs: dict[str, str] = {}
    for index, state in enumerate(sequence.state):
        key = f"sequence_batching.state[{index}]"
        _take(state.input_name, f"{key}.input_name", taken, where)
        _take(state.output_name, f"{key}.output_name", outputs, where)
        validate_data_type(state.data_type, f"{key}.data_type", where)
        if not state.dims:
            raise ConfigError(where, f"{key}.dims", "at least one dimension", "[]")
        validate_dims(state.dims, f"{key}.dims", where)
        if len(state.initial_state) > 1:
            given = str(len(state.initial_state))
            raise ConfigError(where, f"{key}.initial_state", "at most one entry", given)
        for initial in state.initial_state:
            _validate_initial(initial, state, f"{key}.initial_state[0]", where)


def _validate_initial(initial: Any, state: Any, key: str, where: str) -> None:
    if initial.data_type != state.data_type:
        expected = data_type_name(state.data_type)
        given = data_type_name(initial.data_type)
        raise ConfigError(where, f"{key}.data_type", expected, given)
    validate_concrete_dims(initial.dims, state.dims, f"{key}.dims", where)
    if not initial.zero_data and not initial.data_file:
        raise ConfigError(where, key, "one of zero_data, data_file", "none")
    if initial.data_file:
        validate_relative_path(initial.data_file, f"{key}.data_file", where)
