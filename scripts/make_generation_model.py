"""Make a small model that generates text, without a download: a tokenizer and a Llama-style decoder, trained on this
repository's documentation, in Hugging Face's layout and with a config.pbtxt.

    python scripts/make_generation_model.py models                        a minute or two of training
    python scripts/make_generation_model.py models --steps 100            some seconds
    python scripts/make_generation_model.py models --name bench --random-weights \\
        --layers 12 --width 768 --heads 12 --kv-heads 12 --vocabulary 32000 --context 2048
                                                                          sizes of a real model, for benches
    isochrone serve models

The same options and seed give the same model on the same machine. It needs: pip install 'isochrone[generation]'.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from torch.nn import functional
except ImportError as missing:
    sys.exit(f"make_generation_model: {missing.name} is missing; install it with: pip install 'isochrone[generation]'")

from isochrone.errors import IsochroneError
from isochrone.worker.backends.transformer.architecture import build_decoder, hidden_states, logits_of
from isochrone.worker.backends.transformer.checkpoint.fields import Fields
from isochrone.worker.backends.transformer.checkpoint.shape import (
    DecoderShape,
    expected_tensors,
    parameter_count,
    shape_of,
)

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END, SYSTEM, USER, ASSISTANT = SPECIAL = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('role: expected system, user or assistant, given ' ~ message['role']) }}{% endif %}"
    "{{ '<|' ~ message['role'] ~ '|>' ~ message['content'] ~ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CONFIG = """\
# A decoder in Hugging Face's layout. See docs/backends.md.
name: "{name}"
backend: "generation"
{parameters}"""


def corpus() -> list[str]:
    """The documentation, paragraph by paragraph, and chats about the glossary's terms."""
    texts = []
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]):
        prose = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
        texts += [part.strip() for part in prose.split("\n\n") if len(part.split()) > 8]
    for term, meaning in re.findall(
        r"^\| \*\*(.+?)\*\* \| (.+?) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE
    ):
        texts.append(f"{USER}What is a {term}?{END}{ASSISTANT}{meaning}{END}")
    return texts


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE: every text has tokens, and no token is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, begin)])
    return tokenizer


def llama_config(
    *, layers: int, width: int, heads: int, kv_heads: int, vocabulary: int, context: int, **changes: Any
) -> dict[str, Any]:
    """A config.json. ``changes`` are keys of it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        # Llama's share, in steps of 32.
        "intermediate_size": -(-width * 8 // 3 // 32) * 32,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
        **changes,
    }


def random_tensors(shape: DecoderShape, seed: int) -> dict[str, torch.Tensor]:
    """Weights as a training starts with them. Biases and the weights of norms are not all 0 or 1, for tests."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, sizes in expected_tensors(shape).items():
        tensor = torch.randn(sizes, generator=generator) * 0.02
        is_norm = "norm" in name or ".ln_" in name
        tensors[name] = tensor + 1 if is_norm and name.endswith("weight") else tensor
    return tensors


def train(
    shape: DecoderShape, tensors: dict[str, torch.Tensor], tokens: torch.Tensor, steps: int, seed: int, progress: bool
) -> dict[str, torch.Tensor]:
    """Trains on windows of a flat list of tokens."""
    rows, length = 8, min(128, shape.context)
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors.values():
        tensor.requires_grad_()
    matrices = [tensor for tensor in tensors.values() if tensor.dim() > 1]
    others = [tensor for tensor in tensors.values() if tensor.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=max(steps, 2), pct_start=0.1)
    positions = torch.arange(length).repeat(rows)

    def attend(layer: int, queries: Any, keys: Any, values: Any) -> Any:
        split = [each.reshape(rows, length, -1, shape.head_dim).transpose(1, 2) for each in (queries, keys, values)]
        return functional.scaled_dot_product_attention(*split, is_causal=True, enable_gqa=True).transpose(1, 2)

    started = time.monotonic()
    for step in range(steps):
        begins = torch.randint(len(tokens) - length - 1, (rows, 1), generator=generator)
        windows = tokens[begins + torch.arange(length + 1)]
        decoder = build_decoder(shape, tensors.__getitem__)
        states = hidden_states(decoder, windows[:, :-1].flatten(), positions, attend)
        loss = functional.cross_entropy(logits_of(decoder, states), windows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(tensors.values(), 1.0)
        optimizer.step()
        schedule.step()
        if progress and (step % 50 == 49 or step == steps - 1):
            print(f"step {step + 1}/{steps}: loss {loss.item():.2f}, {time.monotonic() - started:.0f} s", flush=True)
    return {name: tensor.detach() for name, tensor in tensors.items()}


def write_model(
    repository: Path,
    name: str,
    config: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    tokenizer: Tokenizer,
    parameters: dict[str, str] | None = None,
) -> Path:
    """Writes the model's folder; returns that of its version."""
    directory = repository / name / "1"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    settings = {"bos_token": BEGIN, "eos_token": END, "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    generation = {"bos_token_id": 0, "eos_token_id": 1}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tokenizer.save(str(directory / "tokenizer.json"))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    lines = [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in (parameters or {}).items()
    ]
    (directory.parent / "config.pbtxt").write_text(CONFIG.format(name=name, parameters="".join(lines)))
    return directory


def make(options: argparse.Namespace) -> Path:
    config = llama_config(
        layers=options.layers,
        width=options.width,
        heads=options.heads,
        kv_heads=options.kv_heads,
        vocabulary=options.vocabulary,
        context=options.context,
        torch_dtype=options.dtype,
    )
    shape = shape_of(Fields("options", config))
    texts = corpus()
    print(f"tokenizer: {options.vocabulary} tokens from {sum(map(len, texts)) // 1000} KB of documentation", flush=True)
    tokenizer = train_tokenizer(texts, options.vocabulary)
    print(f"model: {parameter_count(shape) / 1e6:.1f} million weights", flush=True)
    tensors = random_tensors(shape, options.seed)
    if not options.random_weights:
        encoded = [token for text in texts for token in (*tokenizer.encode(text).ids, tokenizer.token_to_id(END))]
        tensors = train(shape, tensors, torch.tensor(encoded), options.steps, options.seed, progress=True)
    dtype = getattr(torch, options.dtype)
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    return write_model(options.repository, options.name, config, tensors, tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0].replace("\n", " "),
        epilog=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("repository", type=Path, help="the model repository to write to")
    parser.add_argument("--name", default="writer", help="of the model (default: %(default)s)")
    for name, default, meaning in (
        ("layers", 2, "layers"),
        ("width", 128, "width of the states"),
        ("heads", 4, "heads of queries"),
        ("kv-heads", 2, "heads of keys and values"),
        ("vocabulary", 1024, "tokens of the vocabulary"),
        ("context", 512, "longest sequence"),
        ("steps", 400, "steps of training"),
        ("seed", 1, "of the weights and of the training"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} (default: %(default)s)")
    parser.add_argument("--random-weights", action="store_true", help="do not train")
    dtypes = ("float32", "bfloat16", "float16")
    parser.add_argument("--dtype", choices=dtypes, default="float32", help="of the written weights")
    options = parser.parse_args()
    if options.vocabulary < 256 + len(SPECIAL):
        parser.error(f"--vocabulary: expected at least {256 + len(SPECIAL)}, given {options.vocabulary}")
    try:
        directory = make(options)
    except OSError as error:
        sys.exit(f"make_generation_model: cannot write {error.filename}: {error.strerror}")
    except IsochroneError as error:
        sys.exit(f"make_generation_model: {error}")
    print(f"{directory}: written")


if __name__ == "__main__":
    main()
