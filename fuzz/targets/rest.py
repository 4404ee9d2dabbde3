"""Bodies of REST: infer with JSON and binary tensors, generate, OpenAI's, and what a gateway reads of them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import numpy as np

from fuzz.target import Target, outcome
from isochrone.gateway.traffic.json_ends import CutOff, objects_at_end, value_at_start
from isochrone.gateway.traffic.parameters import read, read_bounded
from isochrone.gateway.traffic.prompts import openai_fields
from isochrone.protocol.openai.chat_body import read_chat
from isochrone.protocol.openai.completion_body import read_completion
from isochrone.protocol.rest.generate_objects import read_generate
from isochrone.protocol.rest.json_bodies import read_json, reject_repeated_keys
from isochrone.protocol.rest.plan import decode_plan, read_inputs
from isochrone.protocol.rest.plan_memo import PlanMemo
from isochrone.protocol.tensors.binary import from_binary, to_binary
from isochrone.protocol.tensors.datatypes import numpy_of
from isochrone.protocol.tensors.json_values import from_json, to_json

_decode: Any = msgspec.json.decode


class _NoMemory:
    shared_memory = None


def infer(data: bytes) -> None:
    """The JSON part, a line's end that JSON does not have, and the binary part."""
    header, _, tail = data.partition(b"\0")
    memo = PlanMemo()
    plain = outcome(_infer, lambda: decode_plan(header, "m", ""), header, tail)
    for _ in range(3):
        assert outcome(_infer, lambda: memo.decode("m", "", header), header, tail) == plain, (
            "the memo says other things"
        )
    # The same text behind another id.
    if plain[0] and header.lstrip().startswith(b"{"):
        behind = b'{"id":"another",' + header.lstrip()[1:]
        assert outcome(_infer, lambda: memo.decode("m", "", behind), behind, tail) == outcome(
            _infer, lambda: decode_plan(behind, "m", ""), behind, tail
        ), "the memo says other things behind another id"


def _infer(decode: Any, header: bytes, tail: bytes) -> object:
    plan, identity = decode()
    inputs = read_inputs(plan, header + tail, len(header), _NoMemory())
    size = sum(array.nbytes for array in inputs.values())
    assert size <= 64 * (len(header) + len(tail)) + 64, "tensors far larger than the body"
    shown = {name: (array.dtype.str, array.shape, repr(array.tolist())) for name, array in inputs.items()}
    sequence = (plan.sequence_id, plan.sequence_start, plan.sequence_end, repr(plan.parameters))
    return identity, plan.inputs, plan.outputs, sequence, shown


_TYPES = ("BOOL", "UINT8", "INT64", "FP16", "FP32", "FP64", "BYTES", "UINT64", "INT8")


def json_tensor(data: bytes) -> None:
    datatype = _TYPES[data[0] % len(_TYPES)] if data else "FP32"
    ok, value = outcome(read_json, data[1:], _decode, object)
    if not ok:
        return
    count = len(value) if isinstance(value, list) else 1
    for shape in ([count], [1, count], [count, 1], [-1], [2, 2]):
        ok, array = outcome(from_json, "x", datatype, shape, value)
        if ok:
            assert isinstance(array, np.ndarray)
            assert list(array.shape) == shape
            again = outcome(to_json, array, datatype)
            if again[0] and datatype != "BYTES":
                text = msgspec.json.encode(again[1])
                ok, flat = outcome(read_json, text, _decode, object)
                assert ok, "what is written cannot be read"
                assert from_json("x", datatype, shape, flat).tobytes() == array.tobytes() or datatype[:2] == "FP"


def binary_tensor(data: bytes) -> None:
    datatype = _TYPES[data[0] % len(_TYPES)] if data else "FP32"
    body = data[2:]
    size = 1 if datatype == "BYTES" else numpy_of(datatype).itemsize
    for shape in ([len(body) // size], [data[1] if len(data) > 1 else 0], [2, -1], [1 << 40, 1 << 40]):
        ok, array = outcome(from_binary, "x", datatype, shape, body)
        if ok:
            assert isinstance(array, np.ndarray)
            assert array.nbytes <= 16 * len(body) + 16, "a tensor far larger than its bytes"
            if datatype != "BOOL":
                assert bytes(to_binary(array, datatype)) == body


_DECLARED = (("text_input", "BYTES", (1,)), ("x", "FP32", (-1,)), ("id", "INT64", (2, -1)), ("flag", "BOOL", ()))


def generate(data: bytes) -> None:
    batch = data[0] % 3 if data else 0
    ok, value = outcome(read_json, data[1:], _decode, object)
    if ok:
        outcome(reject_repeated_keys, data[1:])
        ok, request = outcome(read_generate, value, _DECLARED, batch)
        if ok:
            msgspec.json.encode(request.parameters)


def openai(data: bytes) -> None:
    """The worker's reading, and the gateway's, which must route by the same model."""
    ok, value = outcome(read_json, data, _decode, object)
    gateway = outcome(openai_fields, data)
    for read_body in (read_chat, read_completion):
        if not ok or not isinstance(value, dict):
            continue
        accepted, call = outcome(read_body, value)
        if accepted:
            assert call.choices >= 1
            assert all(isinstance(prompt, str) for prompt in call.prompts)
            if gateway[0]:
                assert gateway[1].model == call.model, "the gateway routes another model"
    # Large bodies are read at their ends alone.
    if ok and isinstance(value, dict) and gateway[0] and isinstance(value.get("prompt"), str):
        large = data.replace(b'"prompt":"', b'"prompt":"' + b"x" * 300_000, 1)
        if large != data:
            found = outcome(openai_fields, large)
            assert not found[0] or found[1].model == gateway[1].model, "large, it is routed to another model"


def parameters(data: bytes) -> None:
    """The members that a gateway routes by, at the ends of JSON of any size."""
    found = outcome(read, data)
    bounded = outcome(read_bounded, data, len(data))
    if b'"sequence_id"' in data or b'"timeout"' in data or b'"priority"' in data:
        assert bounded == found, "bounded, it says something else"
    outcome(lambda: list(objects_at_end(data)))
    with contextlib.suppress(CutOff):
        outcome(value_at_start, data)
    if found[0] and data.startswith(b"{") and len(data) > 2:
        padded = b'{"pad":"' + b"x" * 300_000 + b'",' + data[1:]
        large = outcome(read_bounded, padded, len(padded))
        try:
            whole = read(padded)
        except Exception:
            return
        if large[0] and whole.sequence:
            assert large[1].sequence == whole.sequence, "large, it belongs to another sequence"


def _infer_body(*, tail: bytes = b"", **fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + (b"\0" + tail if tail else b"")


_BINARY = {"name": "x", "shape": [2, 2], "datatype": "UINT8", "parameters": {"binary_data_size": 4}}
_MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}]

TARGETS = (
    Target(
        "rest_infer",
        ("isochrone.protocol.rest.plan", "isochrone.protocol.rest.plan_memo", "isochrone.protocol.rest.request_json"),
        "the same plan, id and tensors with and without the memo of plans; tensors at most 64 times the body; only our "
        "errors",
        infer,
        (
            _infer_body(id="a", inputs=[_BINARY], parameters={"binary_data_output": True}, tail=b"abcd"),
            _infer_body(inputs=[_BINARY], parameters={"binary_data_output": True, "sequence_id": 4}, tail=b"abcd"),
            _infer_body(inputs=[{"name": "x", "shape": [2], "datatype": "FP32", "data": [1.5, -2]}]),
            _infer_body(inputs=[{"name": "b", "shape": [2], "datatype": "BYTES", "data": ["x", "é"]}], id="q"),
            _infer_body(
                inputs=[{**_BINARY, "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}}],
                outputs=[{"name": "y", "parameters": {"classification": 2}}, {"name": "z", "parameters": {}}],
                tail=b"\1\0\0\0x",
            ),
            b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP64","data":[NaN]}],"parameters":{"timeout":5}}',
            _infer_body(
                inputs=[{**_BINARY, "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4}}]
            ),
        ),
    ),
    Target(
        "json_tensors",
        ("isochrone.protocol.tensors.json_values",),
        "the shape that was asked for; what is written again reads the same; only our errors",
        json_tensor,
        (
            b"\2[1,2,3,4]",
            b"\4[[1.5,NaN],[Infinity,-1e30]]",
            b"\0[true,false]",
            b'\6["a","\\u00e9"]',
            b"\7[18446744073709551615]",
        ),
    ),
    Target(
        "binary_tensors",
        ("isochrone.protocol.tensors.binary",),
        "the bytes that came are the bytes that are written again; memory bounded by the bytes; only our errors",
        binary_tensor,
        (b"\1\4abcd", b"\6\2\1\0\0\0x\0\0\0\0", b"\4\1\0\0\x80?", b"\0\2\2\0", b"\2\1" + b"\xff" * 8),
    ),
    Target(
        "generate",
        ("isochrone.protocol.rest.generate_objects", "isochrone.protocol.rest.json_bodies"),
        "only our errors; parameters can be encoded again",
        generate,
        (
            b'\0{"text_input":"hi","max_tokens":7,"id":[[1],[2]]}',
            b'\1{"x":[[1.5,2]],"flag":true,"parameters":{"temperature":0.5}}',
            b'\2{"id":"r","id":"s","x":NaN}',
        ),
    ),
    Target(
        "openai",
        (
            "isochrone.protocol.openai.chat_body",
            "isochrone.protocol.openai.completion_body",
            "isochrone.gateway.traffic.prompts",
        ),
        "gateway and worker read the same model, whatever the size; only our errors",
        openai,
        (
            _infer_body(
                model="m", messages=_MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
            ),
            _infer_body(model="m", prompt="hi", n=2, logprobs=1, stop=["a"], seed=1, temperature=0.5, priority=1),
            _infer_body(model="m", prompt=["a", "b"], time_to_first_token_ms=5),
            b'{"prompt":"hi","model":"a","model":"b"}',
        ),
    ),
    Target(
        "routing_parameters",
        ("isochrone.gateway.traffic.parameters", "isochrone.gateway.traffic.json_ends"),
        "the same in bounded time as parsed whole; a sequence is not lost in a large body; only our errors",
        parameters,
        (
            b'{"inputs":[],"parameters":{"sequence_id":42,"sequence_start":true,"timeout":5000,"priority":1}}',
            b'{"parameters":{"sequence_id":"camera-1"},"inputs":[{"data":[NaN,1]}]}',
            b'{"a":"\\"parameters\\"","parameters":{"timeout":1}}',
        ),
    ),
)
