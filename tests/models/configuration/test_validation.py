"""Every rule: a base configuration passes, and one change to it is refused with key, expected and given."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.validation import validate

FILE = "m/config.pbtxt"
HEAD = 'name: "m" backend: "python" max_batch_size: 8\n'
INPUT = 'input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }\n'
OUTPUT = 'output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }\n'
BASE = HEAD + INPUT + OUTPUT
START = 'control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
STATE = 'input_name: "SI" output_name: "SO" data_type: TYPE_FP32 dims: [ -1, 2 ]'
ONNX_BASE = BASE.replace('"python"', '"onnxruntime"')
#: On onnxruntime, with an execution provider for a GPU.
GPU_BASE = ONNX_BASE + (
    'parameters { key: "providers" value { string_value: "CUDAExecutionProvider,CPUExecutionProvider" } }'
)
OPENVINO_BASE = BASE.replace('"python"', '"openvino"')
SAMPLE = 'inputs { key: "X" value: { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } }'


def parsed(text: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.mark.parametrize(
    "text",
    [
        BASE,
        BASE + "instance_group { count: 2 kind: KIND_AUTO } instance_group { count: 1 kind: KIND_MODEL }",
        GPU_BASE + "instance_group { count: 2 kind: KIND_GPU gpus: 0 }",
        ONNX_BASE + "instance_group { count: 2 kind: KIND_GPU gpus: [ 0, 3 ] } instance_group { count: 1 gpus: 1 }",
        BASE + "instance_group { count: 2 kind: KIND_GPU gpus: [ 0, 3 ] } instance_group { count: 1 kind: KIND_GPU }",
        BASE + "instance_group { count: 1 gpus: 1 }",
        ONNX_BASE
        + 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }'
        + "instance_group { count: 1 kind: KIND_GPU gpus: [ 1, 2 ] }",
        BASE + "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }",
        BASE
        + "dynamic_batching { priority_levels: 2 default_priority_level: 2"
        + " priority_queue_policy { key: 1 value: { max_queue_size: 4 timeout_action: DELAY } } }",
        BASE + "sequence_batching { direct { minimum_slot_utilization: 0.5 } " + START + " }",
        BASE
        + "sequence_batching { oldest { max_candidate_sequences: 4 preferred_batch_size: 8 } "
        + START
        + ' control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }'
        + " state { "
        + STATE
        + ' initial_state { name: "i" data_type: TYPE_FP32 dims: [ 3, 2 ] zero_data: true } } }',
        HEAD + OUTPUT + "sequence_batching { " + START + " }",
        BASE + "version_policy { specific { versions: [ 3, 1 ] } } response_cache { enable: true }",
        BASE + 'model_warmup { name: "w" batch_size: 8 ' + SAMPLE + " }",
        BASE + 'input { name: "Z" data_type: TYPE_BF16 dims: [ 1 ] reshape { } optional: true }',
        BASE + 'input { name: "Z" data_type: TYPE_INT8 dims: [ 2, -1, 6 ] reshape { shape: [ 2, 1, -1, 3, 2 ] } }',
    ],
)
def test_what_is_right_passes(text: str) -> None:
    validate(parsed(text), FILE)


SEQUENCE = "sequence_batching."
CONTROL = SEQUENCE + "control_input[0].control[0]"


@pytest.mark.parametrize(
    ("text", "key", "expected", "given"),
    [
        (BASE.replace('name: "m"', ""), "name", "a model name", "''"),
        (BASE.replace('"python"', '"pythn"'), "backend", "did you mean 'python'?", "'pythn'"),
        (BASE.replace("size: 8", "size: -1"), "max_batch_size", "at least 0", "-1"),
        (HEAD + OUTPUT, "input", "at least one input", "none"),
        (HEAD + INPUT, "output", "at least one output", "none"),
        (BASE + "input { data_type: TYPE_FP32 dims: 1 }", "input[1].name", "a tensor name", "''"),
        (BASE + INPUT, "input[1].name", "other than that of input[0]", "'X'"),
        (BASE + OUTPUT, "output[1].name", "other than that of output[0]", "'Y'"),
        (BASE + 'input { name: "Z" dims: 1 }', "input[1].data_type", "one of TYPE_BOOL", "TYPE_INVALID"),
        (BASE + 'output { name: "Z" data_type: TYPE_FP32 }', "output[1].dims", "reshape: { shape: [ ] }", "[]"),
        (BASE + 'input { name: "Z" data_type: TYPE_FP32 dims: [ 2, 0 ] }', "input[1].dims[1]", "at least 1", "0"),
        (BASE + 'input { name: "Z" data_type: TYPE_FP32 dims: [ -2 ] }', "input[1].dims[0]", "-1 or a size", "-2"),
        (
            BASE + 'input { name: "Z" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 3 ] } }',
            "input[1].reshape.shape",
            "as many elements as dims [4]",
            "[2, 3]",
        ),
        (
            BASE + 'input { name: "Z" data_type: TYPE_FP32 dims: [ 2, -1 ] reshape { shape: [ -1, 2 ] } }',
            "input[1].reshape.shape",
            "as many elements as dims [2, -1]",
            "[-1, 2]",
        ),
        (
            BASE + 'output { name: "Z" data_type: TYPE_FP32 dims: [ 2 ] reshape { shape: [ 0 ] } }',
            "output[1].reshape.shape[0]",
            "at least 1",
            "0",
        ),
        (BASE + 'default_model_filename: "../m.py"', "default_model_filename", "a relative path", "'../m.py'"),
        (
            BASE + 'output { name: "Z" data_type: TYPE_FP32 dims: 1 label_filename: "/etc/passwd" }',
            "output[1].label_filename",
            "a relative path inside",
            "'/etc/passwd'",
        ),
        (BASE + "batch_input { }", "batch_input[0]", "ragged batches are not served", "one"),
        (BASE + "batch_output { }", "batch_output[0]", "ragged batches are not served", "one"),
        (
            BASE + 'input { name: "Z" data_type: TYPE_FP32 dims: 1 allow_ragged_batch: true }',
            "input[1].allow_ragged_batch",
            "false",
            "true",
        ),
        (
            BASE + 'output { name: "Z" data_type: TYPE_FP32 dims: 1 is_shape_tensor: true }',
            "output[1].is_shape_tensor",
            "false",
            "true",
        ),
        (
            BASE + 'model_repository_agents { agents { name: "checksum" } }',
            "model_repository_agents.agents[0]",
            "none",
            "'checksum'",
        ),
        (BASE + "version_policy { latest { } }", "version_policy.latest.num_versions", "at least 1", "0"),
        (BASE + "version_policy { specific { } }", "version_policy.specific.versions", "at least one", "none"),
        (
            BASE + "version_policy { specific { versions: [ 1, 0 ] } }",
            "version_policy.specific.versions[1]",
            "at least 1",
            "0",
        ),
        (BASE + "instance_group { count: -1 }", "instance_group[0].count", "at least 1", "-1"),
        (
            BASE + "instance_group { count: 1 } instance_group { count: 1 kind: KIND_CPU gpus: 0 }",
            "instance_group[1].gpus",
            "none, since kind is KIND_CPU",
            "[0]",
        ),
        (
            BASE + "instance_group { count: 1 kind: KIND_GPU gpus: [ 0, -1 ] }",
            "instance_group[0].gpus[1]",
            "at least 0",
            "-1",
        ),
        (
            OPENVINO_BASE + "instance_group { count: 1 } instance_group { count: 1 kind: KIND_GPU }",
            "instance_group[1].kind",
            "KIND_CPU or KIND_AUTO without gpus",
            "KIND_GPU",
        ),
        (OPENVINO_BASE + "instance_group { count: 1 gpus: 0 }", "instance_group[0].gpus", "without gpus", "a GPU"),
        (
            GPU_BASE.replace("CUDAExecutionProvider,", "") + "instance_group { count: 1 kind: KIND_GPU }",
            "instance_group[0].kind",
            "--model-config-name cpu",
            "KIND_GPU",
        ),
        (
            GPU_BASE + "instance_group { count: 1 kind: KIND_GPU gpus: [ 0, 1 ] }",
            "instance_group[0].gpus",
            "device_id",
            "[0, 1]",
        ),
        (
            BASE + "instance_group { count: 1 secondary_devices { kind: KIND_NVDLA device_id: 1 } }",
            "instance_group[0].secondary_devices",
            "none",
            "one",
        ),
        (
            BASE + "dynamic_batching { preferred_batch_size: [ 8, 9 ] }",
            "dynamic_batching.preferred_batch_size[1]",
            "an integer from 1 to 8 (max_batch_size)",
            "9",
        ),
        (
            BASE + "dynamic_batching { preferred_batch_size: 0 }",
            "dynamic_batching.preferred_batch_size[0]",
            "from 1 to 8",
            "0",
        ),
        (
            BASE + "dynamic_batching { priority_levels: 2 }",
            "dynamic_batching.default_priority_level",
            "an integer from 1 to 2 (priority_levels)",
            "0",
        ),
        (
            BASE + "dynamic_batching { default_priority_level: 1 }",
            "dynamic_batching.default_priority_level",
            "priority_levels is not set",
            "1",
        ),
        (
            BASE + "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 } }",
            "dynamic_batching.priority_queue_policy",
            "a key from 1 to 2",
            "3",
        ),
        (
            BASE + "dynamic_batching { priority_queue_policy { key: 1 } }",
            "dynamic_batching.priority_queue_policy",
            "none without priority_levels",
            "1",
        ),
        (
            BASE + "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
            "dynamic_batching.priority_levels",
            "at most 1, since preserve_ordering is true",
            "2",
        ),
        (
            BASE + "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }",
            "dynamic_batching.default_queue_policy.timeout_action",
            "REJECT, since preserve_ordering is true",
            "DELAY",
        ),
        (
            BASE + "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1"
            " priority_queue_policy { key: 1 value { timeout_action: DELAY } } }",
            "dynamic_batching.priority_queue_policy[1].timeout_action",
            "REJECT",
            "DELAY",
        ),
        (
            BASE + "sequence_batching { iterative_sequence: true }",
            SEQUENCE + "iterative_sequence",
            "false: it is not supported",
            "true",
        ),
        (
            BASE + "sequence_batching { state { " + STATE + " initial_state { data_type: TYPE_FP32 dims: [1, 2]"
            " zero_data: false } } }",
            SEQUENCE + "state[0].initial_state[0]",
            "one of zero_data, data_file",
            "none",
        ),
        (
            BASE + "sequence_batching { oldest { } }",
            SEQUENCE + "oldest.max_candidate_sequences",
            "at least 1",
            "0",
        ),
        (
            BASE + "sequence_batching { oldest { max_candidate_sequences: 1 preferred_batch_size: 9 } }",
            SEQUENCE + "oldest.preferred_batch_size[0]",
            "from 1 to 8",
            "9",
        ),
        (
            BASE + "sequence_batching { direct { minimum_slot_utilization: 1.5 } }",
            SEQUENCE + "direct.minimum_slot_utilization",
            "a number from 0 to 1",
            "1.5",
        ),
        (
            BASE + "sequence_batching { " + START.replace('"S"', '""') + " }",
            SEQUENCE + "control_input[0].name",
            "a tensor name",
            "''",
        ),
        (
            BASE + "sequence_batching { " + START.replace('"S"', '"X"') + " }",
            SEQUENCE + "control_input[0].name",
            "other than that of input[0]",
            "'X'",
        ),
        (
            BASE + 'sequence_batching { control_input { name: "S" } }',
            SEQUENCE + "control_input[0].control",
            "exactly one control",
            "0",
        ),
        (
            BASE + "sequence_batching { " + START + START.replace('"S"', '"T"') + " }",
            SEQUENCE + "control_input[1].control[0].kind",
            "other than that of sequence_batching.control_input[0].control[0]",
            "CONTROL_SEQUENCE_START",
        ),
        (
            BASE + "sequence_batching { " + START.replace("int32_false_true: [ 0, 1 ]", "") + " }",
            CONTROL,
            "exactly one of int32_false_true, fp32_false_true, bool_false_true",
            "none",
        ),
        (
            BASE + "sequence_batching { " + START.replace("[ 0, 1 ]", "[ 0 ]") + " }",
            CONTROL + ".int32_false_true",
            "two values",
            "[0]",
        ),
        (
            BASE + "sequence_batching { " + START.replace("[ 0, 1 ]", "[ 0, 1 ] data_type: TYPE_FP32") + " }",
            CONTROL + ".data_type",
            "none",
            "TYPE_FP32",
        ),
        (
            BASE + 'sequence_batching { control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID } } }',
            CONTROL + ".data_type",
            "one of TYPE_UINT64",
            "TYPE_INVALID",
        ),
        (
            BASE + 'sequence_batching { control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID'
            " data_type: TYPE_UINT64 int32_false_true: [ 0, 1 ] } } }",
            CONTROL + ".int32_false_true",
            "none for CONTROL_SEQUENCE_CORRID",
            "[0, 1]",
        ),
        (
            BASE + "sequence_batching { state { " + STATE.replace("SI", "X") + " } }",
            SEQUENCE + "state[0].input_name",
            "other than that of input[0]",
            "'X'",
        ),
        (
            BASE + "sequence_batching { state { " + STATE + " } state { " + STATE.replace("SI", "SJ") + " } }",
            SEQUENCE + "state[1].output_name",
            "other than that of sequence_batching.state[0]",
            "'SO'",
        ),
        (
            BASE + "sequence_batching { state { " + STATE.replace("data_type: TYPE_FP32", "") + " } }",
            SEQUENCE + "state[0].data_type",
            "one of TYPE_BOOL",
            "TYPE_INVALID",
        ),
        (
            BASE + "sequence_batching { state { " + STATE.replace("dims: [ -1, 2 ]", "") + " } }",
            SEQUENCE + "state[0].dims",
            "at least one dimension",
            "[]",
        ),
        (
            BASE + "sequence_batching { state { " + STATE + " initial_state { } initial_state { } } }",
            SEQUENCE + "state[0].initial_state",
            "at most one entry",
            "2",
        ),
        (
            BASE + "sequence_batching { state { " + STATE + " initial_state { data_type: TYPE_INT8 } } }",
            SEQUENCE + "state[0].initial_state[0].data_type",
            "TYPE_FP32",
            "TYPE_INT8",
        ),
        (
            BASE + "sequence_batching { state { " + STATE + " initial_state { data_type: TYPE_FP32 dims: [1, 3] } } }",
            SEQUENCE + "state[0].initial_state[0].dims",
            "sizes that fit [-1, 2]",
            "[1, 3]",
        ),
        (
            BASE + "sequence_batching { state { " + STATE + " initial_state { data_type: TYPE_FP32 dims: [-1, 2] } } }",
            SEQUENCE + "state[0].initial_state[0].dims[0]",
            "a size of at least 1",
            "-1",
        ),
        (
            BASE + "sequence_batching { state { " + STATE + " initial_state { data_type: TYPE_FP32 dims: [1, 2] } } }",
            SEQUENCE + "state[0].initial_state[0]",
            "one of zero_data, data_file",
            "none",
        ),
        (
            BASE + "sequence_batching { state { " + STATE + " initial_state { data_type: TYPE_FP32 dims: [1, 2]"
            ' data_file: "../x" } } }',
            SEQUENCE + "state[0].initial_state[0].data_file",
            "a relative path",
            "'../x'",
        ),
        (
            BASE + "response_cache { enable: true } model_transaction_policy { decoupled: true }",
            "response_cache.enable",
            "false, since the model is decoupled",
            "true",
        ),
        (
            BASE + "response_cache { enable: true } sequence_batching { " + START + " }",
            "response_cache.enable",
            "false, since answers of a sequence",
            "true",
        ),
        (BASE + "model_warmup { }", "model_warmup[0].name", "a name", "''"),
        (
            BASE + 'model_warmup { name: "w" batch_size: 9 }',
            "model_warmup[0].batch_size",
            "an integer from 0 to 8",
            "9",
        ),
        (BASE + 'model_warmup { name: "w" }', "model_warmup[0].inputs", "an entry for input 'X'", "none"),
        (
            BASE + 'model_warmup { name: "w" ' + SAMPLE.replace('"X"', '"Q"') + " }",
            "model_warmup[0].inputs['Q']",
            "one of the inputs X",
            "'Q'",
        ),
        (
            BASE + 'model_warmup { name: "w" ' + SAMPLE.replace("TYPE_FP32", "TYPE_INT8") + " }",
            "model_warmup[0].inputs['X'].data_type",
            "TYPE_FP32",
            "TYPE_INT8",
        ),
        (
            BASE + 'model_warmup { name: "w" ' + SAMPLE.replace("[ 4 ]", "[ 5 ]") + " }",
            "model_warmup[0].inputs['X'].dims",
            "sizes that fit [4]",
            "[5]",
        ),
        (
            BASE + 'model_warmup { name: "w" ' + SAMPLE.replace("zero_data: true", "") + " }",
            "model_warmup[0].inputs['X']",
            "one of zero_data, random_data, input_data_file",
            "none",
        ),
        (
            BASE + 'model_warmup { name: "w" ' + SAMPLE.replace("zero_data: true", 'input_data_file: "/x"') + " }",
            "model_warmup[0].inputs['X'].input_data_file",
            "a relative path",
            "'/x'",
        ),
    ],
)
def test_what_is_wrong_is_named(text: str, key: str, expected: str, given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(parsed(text), FILE)
    error = caught.value
    assert (error.where, error.key, error.given) == (FILE, key, given)
    assert expected in error.expected


def test_numbers_that_are_no_enum_values() -> None:
    config = parsed(BASE + "instance_group { count: 1 }")
    config.instance_group[0].kind = 77
    with pytest.raises(ConfigError) as caught:
        validate(config, FILE)
    assert str(caught.value) == (
        f"{FILE}: instance_group[0].kind: expected one of KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL, given 77"
    )
    config = parsed(BASE)
    config.input[0].data_type = 88
    with pytest.raises(ConfigError) as caught:
        validate(config, FILE)
    assert (caught.value.key, caught.value.given) == ("input[0].data_type", "88")
