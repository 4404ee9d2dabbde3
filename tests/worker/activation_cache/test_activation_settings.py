"""What config.pbtxt may say of the activation cache; errors name the file and the key."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.signature import Signature, TensorSpec
from isochrone.worker.activation_cache.settings import ActivationSettings, read_activation_settings

ON = {"activation_cache": "temporal,spatial"}


def read(
    parameters: dict[str, str],
    *inputs: TensorSpec,
    config: str = "",
) -> ActivationSettings | None:
    given = inputs or (TensorSpec("picture", "UINT8", (224, 224, 3)),)
    message = text_format.Parse(config, model_config_pb2.ModelConfig(name="m"))
    return read_activation_settings(parameters, message, Signature("m", given, (), 8), "m/config.pbtxt")


def settings_of(parameters: dict[str, str], *inputs: TensorSpec, config: str = "") -> ActivationSettings:
    found = read(parameters, *inputs, config=config)
    assert found is not None
    return found


def test_models_without_it_have_none() -> None:
    assert read({}) is None
    assert read({"activation_cache": "none"}) is None
    # Anything else of a configuration is as it was.
    assert read({"cpus": "0"}, TensorSpec("a", "BYTES", (1,)), TensorSpec("b", "FP32", (-1,))) is None


def test_the_defaults() -> None:
    found = settings_of(ON)
    assert found.input_name == "picture"
    assert found.reduction == ("HWC", 48, 0.0, 255.0)
    assert found.scopes == ("temporal", "spatial")
    assert (found.similarity, found.block_similarity) == (0.95, 0.75)
    assert (found.limit_bytes, found.age_ns) == (64 << 20, 10**9)
    assert (found.error_budget, found.sample_share, found.grid) == (0.1, 0.01, ())


def test_every_key() -> None:
    found = settings_of(
        {
            "activation_cache": "spatial",
            "activation_cache_similarity": "0.9",
            "activation_cache_block_similarity": "-1",
            "activation_cache_bytes": "1000000",
            "activation_cache_age_ms": "250",
            "activation_cache_error_budget": "0.2",
            "activation_cache_sample_share": "0.5",
            "activation_cache_layout": "chw",
            "activation_cache_range": "-2.2, 2.8",
            "activation_cache_side": "32",
            "activation_cache_grid": "5,5,30",
        },
        TensorSpec("x", "FP32", (3, -1, -1)),
    )
    assert found.scopes == ("spatial",)
    assert found.reduction == ("CHW", 32, -2.2, 5.0)
    assert (found.similarity, found.block_similarity, found.limit_bytes) == (0.9, -1.0, 1_000_000)
    assert (found.age_ns, found.error_budget, found.sample_share) == (250_000_000, 0.2, 0.5)
    assert found.grid == (5.0, 5.0, 30.0)


@pytest.mark.parametrize(
    ("spec", "config", "layout"),
    [
        (TensorSpec("x", "UINT8", (-1, -1, 3)), "", "HWC"),
        (TensorSpec("x", "FP32", (3, 224, 224)), "", "CHW"),
        (TensorSpec("x", "FP16", (1, 3, 224, 224)), "", "CHW"),
        (TensorSpec("x", "FP32", (64, 64)), "", "HW"),
        (TensorSpec("x", "FP32", (-1, -1, -1)), 'input { name: "x" format: FORMAT_NHWC }', "HWC"),
    ],
)
def test_the_layout_follows_from_the_dims_or_the_format(spec: TensorSpec, config: str, layout: str) -> None:
    assert settings_of(ON, spec, config=config).reduction.layout == layout


@pytest.mark.parametrize(
    ("parameters", "key", "expected"),
    [
        ({"activation_cache": "yes"}, "activation_cache", "temporal"),
        ({"activation_cache_similarity": "0.9"}, "activation_cache", "since other keys"),
        ({**ON, "activation_cache_similarty": "1"}, "activation_cache_similarty", "did you mean"),
        ({**ON, "activation_cache_similarity": "1.5"}, "activation_cache_similarity", "from 0 to 1"),
        ({**ON, "activation_cache_similarity": "nan"}, "activation_cache_similarity", "from 0 to 1"),
        ({**ON, "activation_cache_block_similarity": "x"}, "activation_cache_block_similarity", "from -1 to 1"),
        ({**ON, "activation_cache_error_budget": "0"}, "activation_cache_error_budget", "greater than 0"),
        ({**ON, "activation_cache_error_budget": "1"}, "activation_cache_error_budget", "less than 1"),
        ({**ON, "activation_cache_bytes": "64MiB"}, "activation_cache_bytes", "whole number"),
        ({**ON, "activation_cache_age_ms": "0"}, "activation_cache_age_ms", "whole number"),
        ({**ON, "activation_cache_range": "1,0"}, "activation_cache_range", "0,255"),
        ({**ON, "activation_cache_range": "1"}, "activation_cache_range", "0,255"),
        ({**ON, "activation_cache_side": "500"}, "activation_cache_side", "16 to 96"),
        ({**ON, "activation_cache_grid": "5,0"}, "activation_cache_grid", "5,5,30"),
        ({**ON, "activation_cache_layout": "NHWC"}, "activation_cache_layout", "HWC"),
        ({**ON, "activation_cache_layout": "HW"}, "activation_cache_layout", "3 axes"),
        ({**ON, "activation_cache_layout": "CHW"}, "activation_cache_layout", "C is 1 or 3"),
    ],
)
def test_wrong_values_are_rejected(parameters: dict[str, str], key: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(parameters)
    assert raised.value.where == "m/config.pbtxt"
    assert raised.value.key == f'parameters["{key}"]'
    assert expected in raised.value.expected


@pytest.mark.parametrize(
    ("inputs", "config", "expected"),
    [
        ((TensorSpec("a", "FP32", (8, 8)), TensorSpec("b", "FP32", (8, 8))), "", "2 inputs"),
        ((TensorSpec("file", "BYTES", (1,)),), "", "BYTES"),
        ((TensorSpec("ids", "INT64", (8, 8)),), "", "INT64"),
        ((TensorSpec("row", "FP32", (16,)),), "", "do not say it"),
        ((TensorSpec("odd", "FP32", (5, 64, 64)),), "", "do not say it"),
        ((TensorSpec("rgba", "UINT8", (64, 64, 4)),), "", "C is 1 or 3"),
        ((TensorSpec("flow", "FP32", (2, 64, 64)),), 'input { name: "flow" format: FORMAT_NCHW }', "C is 1 or 3"),
        ((TensorSpec("small", "UINT8", (5, 64, 3)),), "", "7 or more"),
        ((TensorSpec("small", "UINT8", (6, 64)),), "", "7 or more"),
        ((), "model_transaction_policy { decoupled: true }", "decoupled"),
        ((), "sequence_batching { }", "sequences"),
        ((), "ensemble_scheduling { }", "step"),
        ((), 'backend: "remote"', "remote model"),
        ((), 'backend: "generation"', "generates text"),
        ((), "response_cache { enable: true }", "response_cache"),
    ],
)
def test_models_that_cannot_have_it_are_rejected(inputs: tuple[TensorSpec, ...], config: str, expected: str) -> None:
    with pytest.raises(ConfigError, match="activation_cache") as raised:
        read(ON, *inputs, config=config)
    assert expected in str(raised.value)
