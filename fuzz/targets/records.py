"""Records of the store, dumps of flight recorders, checkpoints: of other versions and makers, damaged, or forged."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from fuzz.target import Target, outcome
from isochrone.control.state import process_records, records, rollout_records
from isochrone.control.state.codec import decode, encode
from isochrone.observe.flights.dump import read_dump
from isochrone.observe.flights.messages import FlightPage
from isochrone.worker.backends.transformer.checkpoint.fields import read_fields
from isochrone.worker.backends.transformer.checkpoint.shape import shape_of

#: Record types by name, so that a byte of an input always names the same.
KINDS: tuple[type[Any], ...] = tuple(
    kind
    for name, kind in sorted((vars(records) | vars(rollout_records) | vars(process_records)).items())
    if name.endswith("Record") and isinstance(kind, type)
)


def stored(data: bytes) -> None:
    kind = KINDS[data[0] % len(KINDS)] if data else KINDS[0]
    ok, record = outcome_of_record(data[1:], kind)
    if ok:
        assert decode(encode(record), kind) == record, "written again, it is another record"


def outcome_of_record(content: bytes, kind: type[Any]) -> tuple[bool, Any]:
    return outcome(lambda: decode(content, kind))


@contextmanager
def _file_of(data: bytes) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(prefix="isochrone-fuzz-") as file:
        file.write(data)
        file.flush()
        yield Path(file.name)


def checkpoint(data: bytes) -> None:
    """The shape that a config.json of a checkpoint states."""
    with _file_of(data) as path:
        outcome(lambda: shape_of(read_fields(path, required=True)))


def dump(data: bytes) -> None:
    with _file_of(data) as path:
        for page in read_dump(path, "r"):
            msgspec.json.encode(page)


def example(kind: Any) -> Any:
    """A value of a type with every field set."""
    match kind:
        case inspect.StructType() | inspect.DataclassType():
            return {each.encode_name: example(each.type) for each in kind.fields} | _tag(kind)
        case inspect.DictType():
            return {"a": example(kind.value_type)}
        case inspect.VarTupleType() | inspect.ListType() | inspect.FrozenSetType():
            return [example(kind.item_type)]
        case inspect.TupleType():
            return [example(each) for each in kind.item_types]
        case inspect.UnionType():
            # A structure, if one is among them: it reaches further fields.
            return example(next((each for each in kind.types if isinstance(each, inspect.StructType)), kind.types[0]))
        case inspect.IntType() | inspect.FloatType() | inspect.BoolType():
            return {inspect.IntType: 7, inspect.FloatType: 1.5, inspect.BoolType: True}[type(kind)]
        case inspect.LiteralType() | inspect.EnumType():
            return kind.values[0] if isinstance(kind, inspect.LiteralType) else next(iter(kind.cls)).value
        case inspect.NoneType():
            return None
        case _:
            return "r"


def _tag(kind: Any) -> dict[str, Any]:
    return {kind.tag_field: kind.tag} if getattr(kind, "tag_field", None) else {}


def _encoded(kind: Any) -> bytes:
    return msgspec.json.encode(example(inspect.type_info(kind)))


_LLAMA = b"""{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
"num_key_value_heads": 2, "max_position_embeddings": 128, "num_hidden_layers": 2, "intermediate_size": 128,
"vocab_size": 100, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "sliding_window": null, "rope_scaling":
{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "rope_theta": 5e5}}"""
_GPT2 = b'{"architectures":["GPT2LMHeadModel"],"n_embd":64,"n_head":4,"n_layer":2,"n_positions":64,"vocab_size":100}'

TARGETS = (
    Target(
        "checkpoint_config",
        (
            "isochrone.worker.backends.transformer.checkpoint.fields",
            "isochrone.worker.backends.transformer.checkpoint.shape",
        ),
        "only our errors",
        checkpoint,
        (_LLAMA, _GPT2, _LLAMA.replace(b"1e-5", b"9" * 400)),
    ),
    Target(
        "store_records",
        (
            "isochrone.control.state.codec",
            "isochrone.control.state.records",
            "isochrone.control.state.rollout_records",
            "isochrone.control.state.process_records",
        ),
        "what is written again reads the same; only Unreadable",
        stored,
        tuple(bytes((index,)) + _encoded(kind) for index, kind in enumerate(KINDS)),
    ),
    Target(
        "flight_dump",
        ("isochrone.observe.flights.dump",),
        "lines that do not parse are left out; no exception",
        dump,
        (_encoded(FlightPage) + b"\n", b'{"id":"r"}\n{"flights":[{"id":"r","role":"gateway"}]}\n"r'),
    ),
)
