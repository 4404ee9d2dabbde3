"""Parsing: what is right comes through, what is wrong is named by file, line, key, expected and given."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format, text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.backends import backend_name
from isochrone.models.configuration.json_config import parse_json
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.protocol.control_json import model_config_json

FILE = "m/config.pbtxt"


def test_a_whole_configuration() -> None:
    text = """
    name: "m"  # a comment with { and "
    max_batch_size: 8
    input [ { name: "X" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
    output { name: "Y" data_type: TYPE_STRING dims: 2 }
    parameters { key: "threads" value: { string_value: "2" } }
    """
    config, stated = parse_text(text, FILE)
    assert (config.name, config.max_batch_size, list(config.input[0].dims)) == ("m", 8, [-1, 3])
    assert config.parameters["threads"].string_value == "2"
    assert stated
    assert parse_text(text.encode(), FILE) == (config, True)


@pytest.mark.parametrize(("text", "stated"), [("", False), ("max_batch_size: 0", True), ('name: "x"', False)])
def test_whether_the_batch_size_is_stated(text: str, stated: bool) -> None:
    assert parse_text(text, FILE)[1] is stated


@pytest.mark.parametrize(
    ("text", "place", "key", "expected", "given"),
    [
        ('name: "x"\nmax_batchsize: 3', ":2:1", "max_batchsize", "did you mean 'max_batch_size'?", "'max_batchsize'"),
        ('input { name: "a" } input { dims: [2, 3] dimz: 1 }', ":1:42", "input[1].dimz", "'dims'", "'dimz'"),
        ("garbage", ":1:1", "garbage", "one of the known keys name, platform", "'garbage'"),
        ('input [ {name: "a"},\n { data_type: TYPE_F32 } ]', ":2:15", "input[1].data_type", "TYPE_FP32", "TYPE_F32"),
        ("input { dims: [1, x] }", ":1:19", "input[0].dims[1]", "an integer from -9223372036854775808", "x"),
        ("max_batch_size: 1.5", ":1:17", "max_batch_size", "an integer from -2147483648 to 2147483647", "1.5"),
        ("max_batch_size: 99999999999", ":1:17", "max_batch_size", "to 2147483647", "99999999999"),
        (
            "dynamic_batching { max_queue_delay_microseconds: -1 }",
            ":1:50",
            "dynamic_batching.max_queue_delay_microseconds",
            "an integer from 0 to",
            "-1",
        ),
        (
            "dynamic_batching { default_queue_policy { timeout_action: FOO } }",
            ":1:59",
            "dynamic_batching.default_queue_policy.timeout_action",
            "one of REJECT, DELAY",
            "FOO",
        ),
        (
            "input { data_type: 99999999999999999999 }",
            ":1:20",
            "input[0].data_type",
            "TYPE_FP32",
            "99999999999999999999",
        ),
        (
            "max_batch_size: 1\ninstance_group { kind: -0xfffffffffffffffffff }",
            ":2:24",
            "instance_group[0].kind",
            "KIND_CPU",
            "-0xfffffffffffffffffff",
        ),
        ("name: 5", ":1:7", "name", "a quoted string", "5"),
        ('name: "abc', ":1:7", "name", "a quoted string", '"abc'),
        ('name: "\\xff"', ":1:13", "name", "UTF-8", "not UTF-8"),
        ("response_cache { enable: maybe }", ":1:26", "response_cache.enable", "true or false", "maybe"),
        ('name: "a"\nname: "b"', ":2:7", "name", "one value", "a second one"),
        (
            "dynamic_batching{} sequence_batching{}",
            ":1:20",
            "sequence_batching",
            "only one of dynamic_batching",
            "both",
        ),
        ('input { name: "x"', ":1:7", "input[0]", "a '}' that closes the '{' at 1:7", "the end of the text"),
        ('# {\ninput {\n name: "}"\n\n', ":2:7", "input[0]", "a '}' that closes the '{' at 2:7", "the end"),
        ('parameters { key: "a" value { string_value: "b" }', ":1:12", "parameters[0]", "a '}' that closes", "the end"),
        ("dynamic_batching <", ":1:18", "dynamic_batching", "a '>' that closes the '<' at 1:18", "the end"),
        ('input [ { name: "x" }', ":1:7", "input", "a ']' that closes the '[' at 1:7", "the end of the text"),
        ("input { dims: [3", ":1:15", "input[0].dims", "a ']' that closes the '[' at 1:15", "the end of the text"),
        ("input { dims: [3, } ", ":1:19", "input[0].dims", "']' to close the '[' at 1:15", "'}'"),
        ("input { dims: [3 }", ":1:18", "input[0].dims", "']' to close the '[' at 1:15", "'}'"),
        ('input [ { name: "x" ]', ":1:21", "input[0]", "'}' to close the '{' at 1:9", "']'"),
        ('input [ { name: "x" }, ]', ":1:24", "input[1]", "a value", "']' after a ','"),
        ("input { dims: [1 2] }", ":1:18", "input[0].dims[0]", "',' or ']' to close the '[' at 1:15", "2"),
        (
            'input [ { name: "x" }\noutput [ { name: "y" } ]',
            ":2:1",
            "input[0]",
            "',' or ']' to close the '[' at 1:7",
            "output",
        ),
        (
            'input {\n name: "x"\n\noutput { name: "y" }',
            ":4:1",
            "input[0].output",
            "a key of input[0], or before it the '}' that closes the '{' at 1:7",
            "'output', a key of the top level",
        ),
        ("max_batch_size: 8 }", ":1:19", "(top level)", "no bracket is open here", "'}'"),
        ("input 5", ":1:7", "input[0]", "'{'", "'5'"),
        ('name "x"', ":1:6", "name", "':'", "'\"x\"'"),
        ("}", ":1:1", "(top level)", "a key: no bracket is open here", "}"),
    ],
)
def test_text_errors(text: str, place: str, key: str, expected: str, given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_text(text, FILE)
    error = caught.value
    assert (error.where, error.key) == (FILE + place, key)
    assert expected in error.expected
    assert given in error.given
    assert str(error) == f"{FILE}{place}: {key}: expected {error.expected}, given {error.given}"


def test_text_that_is_not_utf_8() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_text(b'name: "x"\nplatform: "\xff"', FILE)
    assert str(caught.value) == f"{FILE}:2:12: (encoding): expected UTF-8 text, given byte 0xff"


@given(st.text(alphabet="name: input{}[]<>,;\"#\\\n1x_'", max_size=60) | st.binary(max_size=30))
def test_no_text_raises_anything_but_a_config_error(content: str | bytes) -> None:
    try:
        config, _ = parse_text(content, FILE)
    except ConfigError as error:
        assert error.where.startswith(FILE)  # noqa: PT017 - both outcomes are fine
    else:
        assert isinstance(config, model_config_pb2.ModelConfig)


@pytest.mark.parametrize(
    ("value", "key", "expected", "given"),
    [
        ({"max_batchsize": 1}, "max_batchsize", "did you mean 'max_batch_size'?", '"max_batchsize"'),
        ({"input": [{"name": "a"}, {"data_type": "TYPE_F"}]}, "input[1].data_type", "TYPE_FP32", '"TYPE_F"'),
        ({"input": [{"data_type": 99}]}, "input[0].data_type", "TYPE_FP32", "99"),
        ({"input": [{"dims": [1, "x"]}]}, "input[0].dims[1]", "an integer from", '"x"'),
        ({"input": 5}, "input", "a JSON array", "5"),
        ({"input": [5]}, "input[0]", "a JSON object", "5"),
        ({"max_batch_size": 99999999999}, "max_batch_size", "to 2147483647", "99999999999"),
        ({"max_batch_size": 1.5}, "max_batch_size", "an integer", "1.5"),
        ({"max_batch_size": True}, "max_batch_size", "an integer", "true"),
        ({"name": 5}, "name", "a quoted string", "5"),
        ({"name": "\ud800"}, "name", "a quoted string", '"\\ud800"'),
        ({"\ud800": 1}, "\\ud800", "one of the known keys", '"\\ud800"'),
        ({"input": [{"\udfff": 1}]}, "input[0].\\udfff", "one of the known keys", '"\\udfff"'),
        ({"input": [{"data_type": "\ud800"}]}, "input[0].data_type", "TYPE_FP32", '"\\ud800"'),
        ({"instance_group": [{"kind": "\ud800"}]}, "instance_group[0].kind", "KIND_CPU", '"\\ud800"'),
        ({"metric_tags": {"\ud800": "x"}}, "metric_tags", "a quoted string", '"\\ud800"'),
        ({"input": [{"data_type": 99999999999999999999}]}, "input[0].data_type", "TYPE_FP32", "99999999999999999999"),
        ({"response_cache": {"enable": "x"}}, "response_cache.enable", "true or false", '"x"'),
        ({"parameters": {"a": {"string_value": 1}}}, 'parameters["a"].string_value', "a quoted string", "1"),
        ({"parameters": []}, "parameters", "a JSON object", "[]"),
        (
            {"dynamic_batching": {"priority_queue_policy": {"x": {}}}},
            "dynamic_batching.priority_queue_policy",
            "an integer",
            '"x"',
        ),
        (
            {"sequence_batching": {"direct": {"minimum_slot_utilization": "a"}}},
            "sequence_batching.direct.minimum_slot_utilization",
            "a number",
            '"a"',
        ),
        ({"dynamic_batching": {}, "sequenceBatching": {}}, "sequenceBatching", "only one of dynamic_batching", "both"),
        ([], "(top level)", "a JSON object", "[]"),
    ],
)
def test_json_errors(value: object, key: str, expected: str, given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_json(json.dumps(value), "load parameter 'config'")
    error = caught.value
    assert (error.where, error.key) == ("load parameter 'config'", key)
    assert expected in error.expected
    assert given in error.given
    # The error can be sent to the caller.
    str(error).encode()


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"max_batch_size": ' + "1" * 5000 + "}", "{'a': 1}"])
def test_text_that_is_not_json(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_json(text, "load")
    assert caught.value.where.startswith("load")
    assert caught.value.expected == "valid JSON"
    assert caught.value.given


def test_json_takes_both_spellings_and_64_bit_integers_as_strings() -> None:
    config, stated = parse_json('{"maxBatchSize": 2, "input": [{"name": "X", "dims": ["-1", 3, 4.0]}]}', "load")
    assert (config.max_batch_size, list(config.input[0].dims), stated) == (2, [-1, 3, 4], True)
    assert parse_json('{"input": null}', "load") == (model_config_pb2.ModelConfig(), False)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('backend: "onnxruntime"', "onnx"),
        ('backend: "onnx"', "onnx"),
        ('platform: "onnxruntime_onnx"', "onnx"),
        ('backend: "python"', "python"),
        ('backend: "pytorch"', "torch"),
        ('backend: "torch"', "torch"),
        ('backend: "libtorch"', "torch"),
        ('platform: "pytorch_libtorch" backend: "pytorch"', "torch"),
        ('backend: "openvino"', "openvino"),
        ('backend: "fil"', "fil"),
        ('backend: "identity"', "identity"),
        ('platform: "ensemble"', "ensemble"),
        ("ensemble_scheduling { }", "ensemble"),
    ],
)
def test_backend_spellings(text: str, name: str) -> None:
    assert backend_name(parse_text(text, FILE)[0], FILE) == name


@pytest.mark.parametrize(
    ("text", "key", "expected", "given"),
    [
        ('backend: "onnxruntim"', "backend", "did you mean 'onnxruntime'?", "'onnxruntim'"),
        ('platform: "onnxruntime"', "platform", "did you mean 'onnxruntime_onnx'?", "'onnxruntime'"),
        ('backend: "python" platform: "onnxruntime_onnx"', "platform", "backend 'python'", "'onnxruntime_onnx'"),
        ('backend: "python" ensemble_scheduling { }', "backend", "'ensemble'", "'python'"),
        ('platform: "onnxruntime_onnx" ensemble_scheduling { }', "platform", "'ensemble'", "'onnxruntime_onnx'"),
        ("", "backend", "one of", "''"),
    ],
)
def test_backend_errors(text: str, key: str, expected: str, given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        backend_name(parse_text(text, FILE)[0], FILE)
    assert (caught.value.where, caught.value.key, caught.value.given) == (FILE, key, given)
    assert expected in caught.value.expected


def test_the_rest_form() -> None:
    config = text_format.Parse(
        """
        name: "m" max_batch_size: 8
        input { name: "X" data_type: TYPE_FP32 dims: [ -1, 3 ] reshape { shape: [ -1, 3, 1 ] } }
        version_policy { specific { versions: [ 1, 3 ] } }
        dynamic_batching {
          max_queue_delay_microseconds: 100
          priority_queue_policy { key: 2 value: { default_timeout_microseconds: 7 } }
        }
        instance_group { count: 2 kind: KIND_CPU }
        """,
        model_config_pb2.ModelConfig(),
    )
    form = model_config_json(config)
    assert form["input"][0]["dims"] == [-1, 3]
    assert form["input"][0]["data_type"] == "TYPE_FP32"
    assert form["input"][0]["format"] == "FORMAT_NONE"
    assert form["input"][0]["optional"] is False
    assert form["input"][0]["reshape"] == {"shape": [-1, 3, 1]}
    assert form["version_policy"] == {"specific": {"versions": [1, 3]}}
    assert form["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    assert form["dynamic_batching"]["preserve_ordering"] is False
    assert form["dynamic_batching"]["priority_queue_policy"]["2"]["default_timeout_microseconds"] == 7
    assert form["instance_group"][0]["kind"] == "KIND_CPU"
    assert form["platform"] == ""
    assert form["output"] == []
    assert form["parameters"] == {}
    assert "sequence_batching" not in form
    assert json_format.ParseDict(form, model_config_pb2.ModelConfig()) == config


dims = st.lists(st.integers(-1, 2**40), max_size=3)


@given(
    st.builds(
        model_config_pb2.ModelConfig,
        name=st.text(max_size=4),
        max_batch_size=st.integers(0, 2**31 - 1),
        input=st.lists(st.builds(model_config_pb2.ModelInput, name=st.text(max_size=3), dims=dims), max_size=3),
        metric_tags=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
    )
)
def test_text_and_json_forms_read_back(config: model_config_pb2.ModelConfig) -> None:
    assert parse_text(text_format.MessageToString(config), FILE)[0] == config
    assert parse_json(json.dumps(model_config_json(config)), "load")[0] == config


@pytest.mark.parametrize("key", ["backend", "platform"])
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("tensorrt", "converted to ONNX"),
        ("tensorrt_plan", "converted to ONNX"),
        ("tensorflow", "tf2onnx"),
        ("tensorflow_graphdef", "tf2onnx"),
        ("tensorflow_savedmodel", "tf2onnx"),
        ("caffe2_netdef", "converted to ONNX"),
        ("dali", "backend 'python'"),
        ("vllm", "calls the engine"),
        ("tensorrtllm", "calls the engine"),
        ("fastertransformer", "calls the engine"),
        ("paddle", "'model.pdmodel'"),
        ("armnn_tflite", "backend 'openvino'"),
        ("stateful", "sequence_batching.state"),
        ("hugectr", "converted to ONNX"),
        ("hps", "converted to ONNX"),
        ("repeat", "backend 'python'"),
        ("square", "backend 'python'"),
        ("minimal", "backend 'python'"),
        ("recommended", "backend 'python'"),
        ("sequence", "backend 'python'"),
        ("dyna_sequence", "backend 'python'"),
        ("distributed_addsub", "backend 'python'"),
        ("custom", "shared libraries"),
    ],
)
def test_tritons_other_backends_are_refused_with_what_to_do(key: str, name: str, instead: str) -> None:
    with pytest.raises(ConfigError) as caught:
        backend_name(parse_text(f'{key}: "{name}"', FILE)[0], FILE)
    assert (caught.value.where, caught.value.key, caught.value.given) == (FILE, key, f"'{name}'")
    assert instead in caught.value.expected
    assert "did you mean" not in caught.value.expected
