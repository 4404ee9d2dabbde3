"""Small models in Hugging Face's layout, with random weights, and an independent computation of their logits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf import text_format
from safetensors.numpy import load_file
from tritonclient.grpc import model_config_pb2

from isochrone.models.signature import signature_of
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.transformer.checkpoint.fields import Fields
from isochrone.worker.backends.transformer.checkpoint.shape import shape_of
from scripts.make_generation_model import llama_config, random_tensors, train_tokenizer, write_model

Floats = npt.NDArray[np.float64]
#: The folder of a version of a sample, by its name.
SampleModel = Callable[[str], Path]

TEXTS = ["the worker answers within its deadline, or rejects the request at once", "grüße an 3 workers: 5 µs"] * 20
VOCABULARY = 320
_SIZES: dict[str, Any] = {
    "layers": 2,
    "width": 32,
    "heads": 4,
    "kv_heads": 2,
    "vocabulary": VOCABULARY,
    "context": 96,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
#: config.json by name: every variant that the backend computes.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": llama_config(**_SIZES),
    "llama3": llama_config(**_SIZES, rope_scaling=_LLAMA3, tie_word_embeddings=False, head_dim=16),
    "linear": llama_config(
        **_SIZES, rope_scaling={"type": "linear", "factor": 2.0}, attention_bias=True, mlp_bias=True
    ),
    "mistral": llama_config(**_SIZES, architectures=["MistralForCausalLM"], sliding_window=None),
    "qwen2": llama_config(**_SIZES, architectures=["Qwen2ForCausalLM"], rope_theta=1e6),
    "qwen3": llama_config(**_SIZES, architectures=["Qwen3ForCausalLM"], head_dim=16),
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 4,
        "n_positions": 96,
        "vocab_size": VOCABULARY,
        "activation_function": "gelu_new",
        "eos_token_id": 1,
    },
}


#: The last norm: its factors are those of the logits.
_LAST_NORM = frozenset(["model.norm.weight", "transformer.ln_f.weight", "transformer.ln_f.bias"])


def write_sample(repository: Path, name: str, *, sharp: bool = False) -> Path:
    """The folder of a version of the sample ``name``. ``sharp``: logits differ by much more than bfloat16 rounds, and
    depend on the whole sequence."""
    config = CONFIGS[name]
    tensors = random_tensors(shape_of(Fields("sample", config)), seed=sum(map(ord, name)))
    # Larger than a training starts with: attention and tokens must make a difference.
    factor = 8 if sharp else 4
    tensors = {key: tensor * (factor if tensor.dim() > 1 else 1) for key, tensor in tensors.items()}
    if sharp:
        tensors |= {key: tensors[key] * 4 for key in tensors.keys() & _LAST_NORM}
    return write_model(repository, name, config, tensors, train_tokenizer(TEXTS, VOCABULARY))


def samples_in(repository: Path, *, sharp: bool = False) -> SampleModel:
    """Writes each sample when it is first asked for; they are not to be changed."""
    written: dict[str, Path] = {}

    def sample(name: str) -> Path:
        if name not in written:
            written[name] = write_sample(repository, name, sharp=sharp)
        return written[name]

    return sample


def context_for(directory: Path, config: str = "", **parameters: str) -> LoadContext:
    """What the worker hands to the backend; ``config`` is text of a config.pbtxt."""
    message = model_config_pb2.ModelConfig(name="m")
    text_format.Parse(config, message)
    return LoadContext("m", "1", directory, message, signature_of(message), 0, (), parameters)


def reference_logits(directory: Path, tokens: list[int]) -> Floats:
    """Logits [tokens, vocabulary] of one sequence in float64: numpy, no cache, one token's attention at a time."""
    config = json.loads((directory / "config.json").read_text())
    tensors = {name: tensor.astype(np.float64) for name, tensor in load_file(directory / "model.safetensors").items()}
    if config["architectures"] == ["GPT2LMHeadModel"]:
        return _gpt2(config, tensors, tokens)
    return _llama(config, tensors, tokens)


def _llama(config: dict[str, Any], tensors: dict[str, Floats], tokens: list[int]) -> Floats:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    angles = np.outer(np.arange(len(tokens)), [_frequency(config, pair, head_dim) for pair in range(head_dim // 2)])
    turns = np.exp(1j * angles)[:, None, :]

    def rms(values: Floats, name: str) -> Floats:
        return values / np.sqrt((values**2).mean(-1, keepdims=True) + config["rms_norm_eps"]) * tensors[name]

    def linear(values: Floats, name: str) -> Floats:
        return values @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0.0)

    def turned(values: Floats) -> Floats:
        half = head_dim // 2
        pairs = (values[..., :half] + 1j * values[..., half:]) * turns
        return np.concatenate((pairs.real, pairs.imag), -1)

    states = tensors["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        normed = rms(states, f"{at}input_layernorm.weight")
        queries, keys, values = (
            linear(normed, f"{at}self_attn.{name}_proj").reshape(len(tokens), -1, head_dim) for name in "qkv"
        )
        if f"{at}self_attn.q_norm.weight" in tensors:
            queries = rms(queries, f"{at}self_attn.q_norm.weight")
            keys = rms(keys, f"{at}self_attn.k_norm.weight")
        attended = _attention(turned(queries), turned(keys), values, heads // kv_heads)
        states = states + linear(attended, f"{at}self_attn.o_proj")
        normed = rms(states, f"{at}post_attention_layernorm.weight")
        gate = linear(normed, f"{at}mlp.gate_proj")
        states = states + linear(gate / (1 + np.exp(-gate)) * linear(normed, f"{at}mlp.up_proj"), f"{at}mlp.down_proj")
    output = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return rms(states, "model.norm.weight") @ tensors[f"{output}.weight"].T


def _frequency(config: dict[str, Any], pair: int, head_dim: int) -> float:
    frequency: float = config["rope_theta"] ** (-2 * pair / head_dim)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("type") == "linear":
        return frequency / float(scaling["factor"])
    if scaling.get("rope_type") == "llama3":
        wavelength, original = 2 * math.pi / frequency, scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        if wavelength > original / low:
            return frequency / float(scaling["factor"])
        if wavelength >= original / high:
            smooth = (original / wavelength - low) / (high - low)
            return float((1 - smooth) * frequency / scaling["factor"] + smooth * frequency)
    return frequency


def _gpt2(config: dict[str, Any], tensors: dict[str, Floats], tokens: list[int]) -> Floats:
    def norm(values: Floats, name: str) -> Floats:
        centred = values - values.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def linear(values: Floats, name: str) -> Floats:
        return values @ tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    width, heads = config["n_embd"], config["n_head"]
    states = tensors["transformer.wte.weight"][tokens] + tensors["transformer.wpe.weight"][: len(tokens)]
    for layer in range(config["n_layer"]):
        at = f"transformer.h.{layer}."
        qkv = linear(norm(states, f"{at}ln_1"), f"{at}attn.c_attn").reshape(len(tokens), 3, heads, width // heads)
        states = states + linear(_attention(qkv[:, 0], qkv[:, 1], qkv[:, 2], 1), f"{at}attn.c_proj")
        inner = linear(norm(states, f"{at}ln_2"), f"{at}mlp.c_fc")
        inner = 0.5 * inner * (1 + np.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        states = states + linear(inner, f"{at}mlp.c_proj")
    return norm(states, "transformer.ln_f") @ tensors["transformer.wte.weight"].T


def _attention(queries: Floats, keys: Floats, values: Floats, group: int) -> Floats:
    attended = np.zeros_like(queries)
    for position in range(len(queries)):
        for head in range(queries.shape[1]):
            scores = keys[: position + 1, head // group] @ queries[position, head] / math.sqrt(queries.shape[2])
            weights = np.exp(scores - scores.max())
            attended[position, head] = weights / weights.sum() @ values[: position + 1, head // group]
    return attended.reshape(len(queries), -1)
