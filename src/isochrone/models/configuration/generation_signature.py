"""The inputs and outputs of models that generate text: those of Triton's backend for vLLM, and ``messages``.

Configurations of such models need not state them.
"""

from __future__ import annotations

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError

#: Output → the BOOL input that asks for it.
EXTRA_OUTPUTS = {
    "finish_reason": "return_finish_reason",
    "cumulative_logprob": "return_cumulative_logprob",
    "logprobs": "return_logprobs",
    "num_input_tokens": "return_num_input_tokens",
    "num_output_tokens": "return_num_output_tokens",
}

#: All are optional: a prompt is ``text_input`` or ``messages``.
_INPUTS = {
    "text_input": "TYPE_STRING",
    "messages": "TYPE_STRING",
    "stream": "TYPE_BOOL",
    "sampling_parameters": "TYPE_STRING",
    "exclude_input_in_output": "TYPE_BOOL",
    **dict.fromkeys(EXTRA_OUTPUTS.values(), "TYPE_BOOL"),
}
_OUTPUTS = {
    "text_output": ("TYPE_STRING", -1),
    "finish_reason": ("TYPE_STRING", -1),
    "cumulative_logprob": ("TYPE_FP32", -1),
    "logprobs": ("TYPE_STRING", -1),
    "num_input_tokens": ("TYPE_UINT32", 1),
    "num_output_tokens": ("TYPE_UINT32", -1),
}


def complete_generation(config: model_config_pb2.ModelConfig, where: str, assumed: list[str]) -> None:
    """Adds what the configuration does not state; raises ``ConfigError`` for what cannot be."""
    for kind, declared, known in (
        ("input", config.input, {name: (data_type, 1) for name, data_type in _INPUTS.items()}),
        ("output", config.output, _OUTPUTS),
    ):
        stated = {tensor.name: tensor for tensor in declared}
        for index, tensor in enumerate(declared):
            if tensor.name not in known:
                expected = f"one of {', '.join(known)}, which models that generate have"
                raise ConfigError(where, f"{kind}[{index}].name", expected, f"'{tensor.name}'")
        for name, (data_type, size) in known.items():
            number = model_config_pb2.DataType.Value(data_type)
            tensor = stated.get(name)
            if tensor is None:
                tensor = declared.add(name=name)
            tensor.data_type = tensor.data_type or number
            if not tensor.dims:
                tensor.dims.append(size)
            if tensor.data_type != number or list(tensor.dims) != [size]:
                given = f"{model_config_pb2.DataType.Name(tensor.data_type)} {list(tensor.dims)}"
                raise ConfigError(where, f"{kind} '{name}'", f"{data_type} [{size}]", given)
            if kind == "input":
                tensor.optional = True
    if config.max_batch_size:
        expected = "0: the steps of sequences are batched, not requests"
        raise ConfigError(where, "max_batch_size", expected, str(config.max_batch_size))
    if not config.model_transaction_policy.decoupled:
        config.model_transaction_policy.decoupled = True
        assumed.append("assumed the decoupled transaction policy and the tensors of a model that generates")
