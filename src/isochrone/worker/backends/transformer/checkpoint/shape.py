"""The sizes and variants of a decoder, from config.json: everything that decides which weights there are and what is
computed with them. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.worker.backends.transformer.checkpoint.fields import Fields

LLAMA_FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
GPT2 = "GPT2LMHeadModel"
SERVED = (*LLAMA_FAMILY, GPT2)

#: Names in config.json → the function.
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_ROTARY = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class Rotary:
    """How positions turn queries and keys. ``factor`` and the fields after it have no effect for ``default``."""

    kind: str
    base: float
    factor: float = 1.0
    #: Of ``llama3`` alone.
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A decoder of the Llama family, or GPT-2."""

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocabulary: int
    #: Longest sequence of which every token sees all earlier ones.
    context: int
    norm_epsilon: float
    activation: str
    #: The output layer is the embedding.
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    #: Queries and keys are normalised per head (Qwen3).
    qk_norm: bool
    #: None: learned positions (GPT-2).
    rotary: Rotary | None
    #: As config.json says: float32, bfloat16 or float16.
    dtype: str

    @property
    def is_gpt2(self) -> bool:
        return self.architecture == GPT2

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that the cache keeps for one token."""
        return self.layers * 2 * self.kv_heads * self.head_dim


def shape_of(config: Fields) -> DecoderShape:
    """The shape that a config.json states."""
    named = config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else named
    if architecture not in SERVED:
        expected = (
            f"one of {', '.join(SERVED)}. Larger or other models run in vLLM behind the gateway: see docs/backends.md"
        )
        config.reject("architectures", expected)
    if "quantization_config" in config:
        expected = "no quantised weights: float32, bfloat16 or float16. vLLM behind the gateway serves quantised models"
        config.reject("quantization_config", expected, config.get("quantization_config"))
    return _gpt2(config) if architecture == GPT2 else _llama(config, str(architecture))


def _llama(config: Fields, architecture: str) -> DecoderShape:
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        config.reject("num_key_value_heads", f"a divisor of num_attention_heads, which is {heads}")
    if "head_dim" not in config and width % heads:
        config.reject("hidden_size", f"a multiple of num_attention_heads, which is {heads}")
    head_dim = config.integer("head_dim", width // heads)
    if head_dim % 2:
        config.reject("head_dim", "an even number", head_dim)
    context = config.integer("max_position_embeddings")
    qwen2 = architecture == "Qwen2ForCausalLM"
    return DecoderShape(
        architecture=architecture,
        layers=config.integer("num_hidden_layers"),
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_width=config.integer("intermediate_size"),
        vocabulary=config.integer("vocab_size"),
        context=min(context, _window(config, context)),
        norm_epsilon=config.number("rms_norm_eps", 1e-6),
        activation=_activation(config, "hidden_act", "silu"),
        tied=config.boolean("tie_word_embeddings", False),
        qkv_bias=qwen2 or config.boolean("attention_bias", False),
        output_bias=not qwen2 and config.boolean("attention_bias", False),
        mlp_bias=config.boolean("mlp_bias", False),
        qk_norm=architecture == "Qwen3ForCausalLM",
        rotary=_rotary(config, context),
        dtype=_dtype(config),
    )


def _gpt2(config: Fields) -> DecoderShape:
    width, heads = config.integer("n_embd"), config.integer("n_head")
    if width % heads:
        config.reject("n_embd", f"a multiple of n_head, which is {heads}")
    for key, only in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        if config.boolean(key, only) is not only:
            config.reject(key, str(only).lower())
    return DecoderShape(
        architecture=GPT2,
        layers=config.integer("n_layer"),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        mlp_width=config.integer("n_inner", 4 * width),
        vocabulary=config.integer("vocab_size"),
        context=config.integer("n_positions"),
        norm_epsilon=config.number("layer_norm_epsilon", 1e-5),
        activation=_activation(config, "activation_function", "gelu_new"),
        tied=config.boolean("tie_word_embeddings", True),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        qk_norm=False,
        rotary=None,
        dtype=_dtype(config),
    )


def _window(config: Fields, context: int) -> int:
    """The sliding window, which bounds the context: within it, a token sees every earlier one as without a window."""
    if "sliding_window" not in config or not config.boolean("use_sliding_window", True):
        return context
    return config.integer("sliding_window")


def _activation(config: Fields, key: str, default: str) -> str:
    name = config.text(key, default)
    if name not in _ACTIVATIONS:
        config.reject(key, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _rotary(config: Fields, context: int) -> Rotary:
    # Newer files have one object, rope_parameters; older ones rope_theta and perhaps rope_scaling.
    key = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    scaling = config.object(key)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind not in _ROTARY:
        scaling.reject("rope_type", f"one of {', '.join(_ROTARY)}", kind)
    for source in (config, scaling):
        if "partial_rotary_factor" in source and source.number("partial_rotary_factor") != 1:
            source.reject("partial_rotary_factor", "1")
    base = scaling.number("rope_theta", config.number("rope_theta", 10000.0))
    if kind == "default":
        return Rotary(kind, base)
    if kind == "linear":
        return Rotary(kind, base, scaling.number("factor"))
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if low >= high:
        scaling.reject("high_freq_factor", f"a number above low_freq_factor, which is {low:g}")
    original = scaling.integer("original_max_position_embeddings", context)
    return Rotary(kind, base, scaling.number("factor"), low, high, original)


def _dtype(config: Fields) -> str:
    key = "dtype" if "dtype" in config else "torch_dtype"
    name = config.text(key, "float32").removeprefix("torch.")
    if name not in ("float32", "bfloat16", "float16"):
        config.reject(key, "float32, bfloat16 or float16")
    return name


def expected_tensors(shape: DecoderShape, prefix: str | None = None) -> dict[str, tuple[int, ...]]:
    """The names of the checkpoint's tensors and their shapes. ``prefix`` is that of the names, if not the usual one."""
    if shape.is_gpt2:
        return _gpt2_tensors(shape, "transformer." if prefix is None else prefix)
    return _llama_tensors(shape, "model." if prefix is None else prefix)


def _llama_tensors(shape: DecoderShape, prefix: str) -> dict[str, tuple[int, ...]]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    found: dict[str, tuple[int, ...]] = {f"{prefix}embed_tokens.weight": (shape.vocabulary, shape.width)}
    for layer in range(shape.layers):
        at = f"{prefix}layers.{layer}."
        found[f"{at}input_layernorm.weight"] = (shape.width,)
        found[f"{at}post_attention_layernorm.weight"] = (shape.width,)
        for name, size in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            found[f"{at}self_attn.{name}.weight"] = (size, shape.width)
            if shape.qkv_bias:
                found[f"{at}self_attn.{name}.bias"] = (size,)
        found[f"{at}self_attn.o_proj.weight"] = (shape.width, queries)
        if shape.output_bias:
            found[f"{at}self_attn.o_proj.bias"] = (shape.width,)
        if shape.qk_norm:
            found[f"{at}self_attn.q_norm.weight"] = (shape.head_dim,)
            found[f"{at}self_attn.k_norm.weight"] = (shape.head_dim,)
        for name in ("gate_proj", "up_proj"):
            found[f"{at}mlp.{name}.weight"] = (shape.mlp_width, shape.width)
            if shape.mlp_bias:
                found[f"{at}mlp.{name}.bias"] = (shape.mlp_width,)
        found[f"{at}mlp.down_proj.weight"] = (shape.width, shape.mlp_width)
        if shape.mlp_bias:
            found[f"{at}mlp.down_proj.bias"] = (shape.width,)
    found[f"{prefix}norm.weight"] = (shape.width,)
    if not shape.tied:
        found["lm_head.weight"] = (shape.vocabulary, shape.width)
    return found


def _gpt2_tensors(shape: DecoderShape, prefix: str) -> dict[str, tuple[int, ...]]:
    width = shape.width
    found: dict[str, tuple[int, ...]] = {
        f"{prefix}wte.weight": (shape.vocabulary, width),
        f"{prefix}wpe.weight": (shape.context, width),
    }
    # GPT-2's matrices are stored as [inputs, outputs].
    for layer in range(shape.layers):
        at = f"{prefix}h.{layer}."
        for name, inputs, outputs in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, shape.mlp_width),
            ("mlp.c_proj", shape.mlp_width, width),
        ):
            found[f"{at}{name}.weight"] = (inputs, outputs)
            found[f"{at}{name}.bias"] = (outputs,)
        for name in ("ln_1", "ln_2"):
            found[f"{at}{name}.weight"] = found[f"{at}{name}.bias"] = (width,)
    found[f"{prefix}ln_f.weight"] = found[f"{prefix}ln_f.bias"] = (width,)
    if not shape.tied:
        found["lm_head.weight"] = (shape.vocabulary, width)
    return found


def parameter_count(shape: DecoderShape) -> int:
    """Numbers of all weights."""
    total = 0
    for sizes in expected_tensors(shape).values():
        count = 1
        for size in sizes:
            count *= size
        total += count
    return total
