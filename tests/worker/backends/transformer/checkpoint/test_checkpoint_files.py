"""What is read from a Hugging Face folder, and what is refused with the file, the key, the expected and the given."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file

from generation_models import CONFIGS, SampleModel
from isochrone.errors import ConfigError
from isochrone.worker.backends.transformer.checkpoint.checkpoint import open_checkpoint
from isochrone.worker.backends.transformer.checkpoint.fields import Fields
from isochrone.worker.backends.transformer.checkpoint.shape import expected_tensors, parameter_count, shape_of


@pytest.fixture
def folder(tmp_path: Path, sample_model: SampleModel) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(sample_model("llama"), tmp_path / "1"))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def split(folder: Path) -> dict[str, str]:
    """Shards the weights in two; returns the map of the index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    places = {name: file for file, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


def refusal(folder: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(safetensors, folder)
    return caught.value


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_architecture_opens(name: str, sample_model: SampleModel) -> None:
    checkpoint = open_checkpoint(safetensors, sample_model(name))
    tensors = load_file(sample_model(name) / "model.safetensors")
    assert parameter_count(checkpoint.shape) == sum(tensor.numel() for tensor in tensors.values())
    with checkpoint.tensors(safetensors, "cpu") as get:
        for key, sizes in expected_tensors(checkpoint.shape).items():
            assert tuple(get(key).shape) == sizes


def test_shards_are_one_checkpoint(folder: Path) -> None:
    whole = load_file(folder / "model.safetensors")
    split(folder)
    with open_checkpoint(safetensors, folder).tensors(safetensors, "cpu") as get:
        assert all(torch.equal(get(name), tensor) for name, tensor in whole.items())


def test_gpt2_without_the_prefix_of_its_names(tmp_path: Path, sample_model: SampleModel) -> None:
    folder = Path(shutil.copytree(sample_model("gpt2"), tmp_path / "1"))
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    # Published files hold the mask, too.
    save_file({**renamed, "h.0.attn.bias": torch.ones(1)}, folder / "model.safetensors")
    assert open_checkpoint(safetensors, folder).prefix == ""


@pytest.mark.parametrize(
    "name", ["../other/model.safetensors", "/etc/model.safetensors", "..", "", "a/b.safetensors", "a\\b.safetensors", 7]
)
def test_a_shard_cannot_be_outside_of_the_folder(folder: Path, name: Any) -> None:
    places: dict[str, Any] = dict(split(folder))
    places["model.norm.weight"] = name
    change(folder / "model.safetensors.index.json", weight_map=places)
    error = refusal(folder)
    assert error.key == "weight_map.model.norm.weight"
    assert error.expected == "the name of a file in the same folder"


def test_a_shard_that_is_no_safetensors_file_is_not_read(folder: Path) -> None:
    places = {**split(folder), "model.norm.weight": "weights.bin"}
    (folder / "weights.bin").write_bytes(pickle.dumps({}))
    change(folder / "model.safetensors.index.json", weight_map=places)
    assert refusal(folder).expected == "a file that ends in .safetensors"


def test_missing_shards(folder: Path) -> None:
    split(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    error = refusal(folder)
    assert (error.key, error.given) == ("weight_map", '"model-00002-of-00002.safetensors"')


def test_a_shard_without_a_tensor_that_the_index_puts_there(folder: Path) -> None:
    places = split(folder)
    places["model.norm.weight"] = next(file for file in set(places.values()) if file != places["model.norm.weight"])
    change(folder / "model.safetensors.index.json", weight_map=places)
    error = refusal(folder)
    assert error.key == "model.norm.weight"
    assert error.where.endswith(places["model.norm.weight"])


def test_pickles_are_named_and_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert refusal(folder).given == "pytorch_model.bin, which is a pickle: convert it with safetensors"
    (folder / "pytorch_model.bin").unlink()
    assert refusal(folder).given == "neither"


def test_tensors_that_config_json_does_not_describe(folder: Path) -> None:
    change(folder / "config.json", intermediate_size=64)
    error = refusal(folder)
    assert error.key == "model.layers.0.mlp.gate_proj.weight"
    assert (error.expected, error.given) == ("shape [64, 32], as config.json says", "[96, 32]")
    change(folder / "config.json", intermediate_size=96, num_hidden_layers=3)
    assert refusal(folder).key == "model.layers.2.input_layernorm.weight"


def test_weights_that_are_no_floating_point_numbers(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, folder / "model.safetensors")
    error = refusal(folder)
    assert (error.key, error.given) == ("model.norm.weight", "I8")


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, b"\xff" * 100, b"8" * 64])
def test_broken_weights(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    error = refusal(folder)
    assert (error.where, error.expected) == (str(folder / "model.safetensors"), "a safetensors file")


@pytest.mark.parametrize(("content", "expected"), [("{", "JSON"), ("[]", "a JSON object"), ("[" * 10**5, "JSON")])
def test_a_broken_config_json(folder: Path, content: str, expected: str) -> None:
    (folder / "config.json").write_text(content)
    error = refusal(folder)
    assert (error.where, error.expected) == (str(folder / "config.json"), expected)


def test_a_folder_without_config_json(tmp_path: Path) -> None:
    assert refusal(tmp_path).where == str(tmp_path / "config.json")


def test_an_unknown_architecture_says_what_is_served_and_where_others_run() -> None:
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM, .*GPT2LMHeadModel.*vLLM behind the gateway"):
        shape_of(Fields("config.json", {"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(ConfigError, match="given nothing"):
        shape_of(Fields("config.json", {}))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"hidden_size": "32"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": 30}, "hidden_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"head_dim": 7}, "head_dim"),
        ({"hidden_act": "mish"}, "hidden_act"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor"),
        ({"rope_scaling": 3}, "rope_scaling"),
        ({"rope_parameters": {"rope_theta": "big"}}, "rope_parameters.rope_theta"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"torch_dtype": "float8"}, "torch_dtype"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_values_that_are_not_computed(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^config.json: {re.escape(key)}: expected"):
        shape_of(Fields("config.json", {**CONFIGS["llama"], **changes}))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"n_embd": 30}, "n_embd"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"add_cross_attention": True}, "add_cross_attention"),
    ],
)
def test_values_of_gpt2_that_are_not_computed(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^config.json: {key}: expected"):
        shape_of(Fields("config.json", {**CONFIGS["gpt2"], **changes}))


def test_a_sliding_window_bounds_the_context() -> None:
    mistral = CONFIGS["mistral"]
    assert shape_of(Fields("config.json", {**mistral, "sliding_window": 40})).context == 40
    assert shape_of(Fields("config.json", mistral)).context == 96
    qwen = {**CONFIGS["qwen2"], "sliding_window": 40, "use_sliding_window": False}
    assert shape_of(Fields("config.json", qwen)).context == 96


def test_older_and_newer_files_state_the_same_rotation() -> None:
    newer = {**CONFIGS["llama"], "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}}
    older = {**CONFIGS["llama"], "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5000.0}
    assert shape_of(Fields("", newer)).rotary == shape_of(Fields("", older)).rotary
