"""The decoder: plain functions of torch over the weights of a checkpoint.

Tokens are one flat list, whatever sequences they belong to; only attention knows sequences, and it is a function that
the caller passes (``attention``). Matrices that read the same input are one matrix: queries, keys and values; the gate
and the upper layer of the Llama family.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from isochrone.worker.backends.transformer.checkpoint.shape import DecoderShape, Rotary

#: (layer, queries [tokens, heads, head_dim], keys [tokens, kv_heads, head_dim], values) → [tokens, heads, head_dim]
Attend = Callable[[int, Any, Any, Any], Any]
#: The name of a tensor in the checkpoint → the tensor, in the type and on the device of the computation.
GetTensor = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights [outputs, inputs] and perhaps a bias."""

    weight: Any
    bias: Any = None

    def __call__(self, inputs: Any) -> Any:
        return functional.linear(inputs, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """With a bias GPT-2's layer norm, without one the Llama family's RMS norm."""

    weight: Any
    bias: Any
    epsilon: float

    def __call__(self, inputs: Any) -> Any:
        sizes = self.weight.shape
        if self.bias is None:
            return functional.rms_norm(inputs, sizes, self.weight, self.epsilon)
        return functional.layer_norm(inputs, sizes, self.weight, self.bias, self.epsilon)


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: Norm
    qkv: Matrix
    #: Of heads of queries and keys; None: they are not normalised.
    query_norm: Norm | None
    key_norm: Norm | None
    attention_output: Matrix
    mlp_norm: Norm
    #: Of the Llama family: gate and up, one above the other.
    mlp_input: Matrix
    mlp_output: Matrix


@dataclass(frozen=True, slots=True)
class Decoder:
    shape: DecoderShape
    embedding: Any
    #: GPT-2's learned positions.
    position_embedding: Any
    #: [context, head_dim] each; None: learned positions.
    cosines: Any
    sines: Any
    layers: tuple[Layer, ...]
    norm: Norm
    output: Any


def build_decoder(shape: DecoderShape, get: GetTensor, prefix: str | None = None) -> Decoder:
    """Puts the weights together. ``prefix`` is that of the checkpoint's names, if not the usual one."""
    if shape.is_gpt2:
        return _build_gpt2(shape, get, "transformer." if prefix is None else prefix)
    return _build_llama(shape, get, "model." if prefix is None else prefix)


def hidden_states(decoder: Decoder, tokens: Any, positions: Any, attend: Attend) -> Any:
    """The states [tokens, width] before the last norm."""
    shape = decoder.shape
    states = functional.embedding(tokens, decoder.embedding)
    cosines = sines = None
    if shape.rotary is None:
        states = states + functional.embedding(positions, decoder.position_embedding)
    else:
        # [tokens, 1, head_dim]: the same for every head.
        cosines = functional.embedding(positions, decoder.cosines).unsqueeze(1)
        sines = functional.embedding(positions, decoder.sines).unsqueeze(1)
    sizes = (shape.heads, shape.kv_heads, shape.kv_heads)
    for number, layer in enumerate(decoder.layers):
        qkv = layer.qkv(layer.attention_norm(states)).view(-1, sum(sizes), shape.head_dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys, values = qkv.split(sizes, 1)
            turned = torch.cat((layer.query_norm(queries), layer.key_norm(keys)), 1)
        else:
            turned, values = qkv.split((shape.heads + shape.kv_heads, shape.kv_heads), 1)
        if cosines is not None:
            turned = _rotate(turned, cosines, sines)
        queries, keys = turned.split(sizes[:2], 1)
        attended = attend(number, queries, keys, values)
        states = states + layer.attention_output(attended.reshape(-1, shape.heads * shape.head_dim))
        states = states + layer.mlp_output(_activate(shape, layer.mlp_input(layer.mlp_norm(states))))
    return states


def logits_of(decoder: Decoder, states: Any) -> Any:
    """Logits [tokens, vocabulary] of hidden states, in the type of the weights."""
    return functional.linear(decoder.norm(states), decoder.output)


def _activate(shape: DecoderShape, inputs: Any) -> Any:
    gate, up = (inputs, None) if shape.is_gpt2 else inputs.chunk(2, -1)
    if shape.activation == "silu":
        gate = functional.silu(gate)
    elif shape.activation == "relu":
        gate = functional.relu(gate)
    else:
        gate = functional.gelu(gate, approximate="tanh" if shape.activation == "gelu_tanh" else "none")
    return gate if up is None else gate * up


def _rotate(heads: Any, cosines: Any, sines: Any) -> Any:
    """Turns pairs (i, i + head_dim / 2) of each head by the angles of its position."""
    first, second = heads.chunk(2, -1)
    return heads * cosines + torch.cat((-second, first), -1) * sines


def rotary_frequencies(rotary: Rotary, head_dim: int) -> list[float]:
    """The angle per position of each pair of a head."""
    frequencies = [rotary.base ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]
    if rotary.kind == "default":
        return frequencies
    if rotary.kind == "linear":
        return [each / rotary.factor for each in frequencies]
    # Llama 3: slow rotations are slowed down by the factor, fast ones stay, those between change gradually.
    scaled = []
    for each in frequencies:
        turns = rotary.original_context * each / (2 * math.pi)
        if turns < rotary.low_frequency_factor:
            scaled.append(each / rotary.factor)
        elif turns > rotary.high_frequency_factor:
            scaled.append(each)
        else:
            share = (turns - rotary.low_frequency_factor) / (rotary.high_frequency_factor - rotary.low_frequency_factor)
            scaled.append((1 - share) * each / rotary.factor + share * each)
    return scaled


def rotary_tables(rotary: Rotary, head_dim: int, context: int, like: Any) -> tuple[Any, Any]:
    """Cosines and sines [context, head_dim] in the type and on the device of ``like``."""
    frequencies = torch.tensor(rotary_frequencies(rotary, head_dim), dtype=torch.float64)
    angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies)
    angles = torch.cat((angles, angles), -1)
    return tuple(table.to(device=like.device, dtype=like.dtype) for table in (angles.cos(), angles.sin()))


def _build_llama(shape: DecoderShape, get: GetTensor, prefix: str) -> Decoder:
    def matrix(*names: str, bias: bool) -> Matrix:
        weights = [get(f"{name}.weight") for name in names]
        biases = [get(f"{name}.bias") for name in names] if bias else []
        if len(names) == 1:
            return Matrix(weights[0], biases[0] if bias else None)
        return Matrix(torch.cat(weights), torch.cat(biases) if bias else None)

    def norm(name: str) -> Norm:
        return Norm(get(f"{name}.weight"), None, shape.norm_epsilon)

    layers = []
    for number in range(shape.layers):
        at = f"{prefix}layers.{number}."
        attention = f"{at}self_attn."
        layers.append(
            Layer(
                attention_norm=norm(f"{at}input_layernorm"),
                qkv=matrix(*(f"{attention}{name}_proj" for name in "qkv"), bias=shape.qkv_bias),
                query_norm=norm(f"{attention}q_norm") if shape.qk_norm else None,
                key_norm=norm(f"{attention}k_norm") if shape.qk_norm else None,
                attention_output=matrix(f"{attention}o_proj", bias=shape.output_bias),
                mlp_norm=norm(f"{at}post_attention_layernorm"),
                mlp_input=matrix(f"{at}mlp.gate_proj", f"{at}mlp.up_proj", bias=shape.mlp_bias),
                mlp_output=matrix(f"{at}mlp.down_proj", bias=shape.mlp_bias),
            )
        )
    embedding = get(f"{prefix}embed_tokens.weight")
    assert shape.rotary is not None
    cosines, sines = rotary_tables(shape.rotary, shape.head_dim, shape.context, embedding)
    output = embedding if shape.tied else get("lm_head.weight")
    return Decoder(shape, embedding, None, cosines, sines, tuple(layers), norm(f"{prefix}norm"), output)


def _build_gpt2(shape: DecoderShape, get: GetTensor, prefix: str) -> Decoder:
    def matrix(name: str) -> Matrix:
        return Matrix(get(f"{name}.weight").t().contiguous(), get(f"{name}.bias"))

    def norm(name: str) -> Norm:
        return Norm(get(f"{name}.weight"), get(f"{name}.bias"), shape.norm_epsilon)

    layers = tuple(
        Layer(
            attention_norm=norm(f"{at}ln_1"),
            qkv=matrix(f"{at}attn.c_attn"),
            query_norm=None,
            key_norm=None,
            attention_output=matrix(f"{at}attn.c_proj"),
            mlp_norm=norm(f"{at}ln_2"),
            mlp_input=matrix(f"{at}mlp.c_fc"),
            mlp_output=matrix(f"{at}mlp.c_proj"),
        )
        for at in (f"{prefix}h.{number}." for number in range(shape.layers))
    )
    embedding = get(f"{prefix}wte.weight")
    output = embedding if shape.tied else get("lm_head.weight")
    positions = get(f"{prefix}wpe.weight")
    return Decoder(shape, embedding, positions, None, None, layers, norm(f"{prefix}ln_f"), output)
