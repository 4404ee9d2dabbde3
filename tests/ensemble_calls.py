"""Ensembles that work, and the calls that the peer tests make to them, to real Triton and to ours alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ensemble_repository import ECHO, Ensemble, Model, Step, tensor

#: The shape that the model sees, as its first output; a batching model answers a row for each it was given.
SHAPE = """
import numpy as np


def answer(given):
    return {"OUT": np.array(given["IN"].shape, np.int64)}
"""
SHAPE_BATCHED = """
import numpy as np


def answer(given):
    shape = given["IN"].shape
    return {"OUT": np.array([shape] * shape[0], np.int64)}
"""
#: As many responses as its input says, 0, 1, …; minus one: it fails.
REPEAT = """
import numpy as np


def answer(given):
    for number in range(int(given["IN"].flat[0])):
        yield {"OUT": np.array([number], np.int32)}
"""
REPEAT_ROWS = """
import numpy as np


def answer(given):
    for number in range(int(given["IN"].flat[0])):
        yield {"OUT": np.array([[number]], np.int32), "AGAIN": np.array([[10 * number]], np.int32)}
"""
HUNDRED = """
def answer(given):
    return {"OUT": given["IN"] + 100}
"""
FAIL = """
def answer(given):
    raise ValueError("no such value")
"""
ADD = """
def answer(given):
    return {"OUT": given["IN0"] + given["IN1"]}
"""
#: Adds what it is given; without IN1 the output OUT1 is missing.
SOME = """
def answer(given):
    outputs = {"OUT0": given["IN0"] + given.get("IN1", 0)}
    if "IN1" in given:
        outputs["OUT1"] = given["IN1"] * 2
    return outputs
"""
SEQUENCE = """
import numpy as np


def answer(given):
    return {"OUT": np.stack([given["START"][:, 0], given["END"][:, 0]], axis=1)}
"""
_CONTROLS = """
sequence_batching {
  max_sequence_idle_microseconds: 30000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }
}
"""

#: It fails in every run, which a warm-up would find out.
_NO_WARMUP = 'parameters { key: "auto_warmup" value { string_value: "false" } }'

X, Y = (tensor("X"),), (tensor("Y"),)
FREE = (tensor("X", (-1,)),)
INT = (tensor("X", (1,), "INT32"),)
INT_OUT = (tensor("Y", (1,), "INT32"),)


def echo(dims: tuple[int, ...], batch: int = 0) -> Model:
    return Model((tensor("IN", dims),), (tensor("OUT", dims),), batch=batch)


def one(model: str, given: str = "X", made: str = "Y") -> Step:
    return Step(model, {"IN": given}, {"OUT": made})


def chain(*models: str) -> tuple[Step, ...]:
    names = ["X", *(f"t{index}" for index in range(1, len(models))), "Y"]
    return tuple(one(model, *names[index : index + 2]) for index, model in enumerate(models))


INTS = (tensor("IN", (1,), "INT32"),)

MODELS: dict[str, Model | Ensemble] = {
    # Models of steps.
    "plain": echo((4,)),
    "batched": echo((4,), 8),
    "rows": echo((-1, 4)),
    "free": echo((-1,)),
    "free_batched": echo((-1,), 8),
    "shape": Model((tensor("IN", (-1, 4)),), (tensor("OUT", (-1,), "INT64"),), body=SHAPE),
    "shape_vector": Model((tensor("IN", (4,)),), (tensor("OUT", (-1,), "INT64"),), body=SHAPE),
    "shape_batched": Model((tensor("IN", (4,)),), (tensor("OUT", (2,), "INT64"),), batch=8, body=SHAPE_BATCHED),
    "matrix": Model((tensor("IN", (2, 2)),), (tensor("OUT", (2, 2)),)),
    "reshaped": Model(
        (tensor("IN", (4,), more="reshape { shape: [2, 2] }"),),
        (tensor("OUT", (4,), more="reshape { shape: [2, 2] }"), tensor("SHAPE", (2,), "INT64")),
        body=SHAPE.replace('{"OUT"', '{"OUT": given["IN"], "SHAPE"'),
    ),
    "reshaped_free": Model(
        (tensor("IN", (-1, 4, -1), more="reshape { shape: [-1, 2, 2, -1] }"),),
        (tensor("OUT", (-1, 4, -1), more="reshape { shape: [-1, 2, 2, -1] }"),),
    ),
    "add": Model((tensor("IN0"), tensor("IN1")), (tensor("OUT"),), body=ADD),
    "some": Model((tensor("IN0"), tensor("IN1", more="optional: true")), (tensor("OUT0"), tensor("OUT1")), body=SOME),
    "some_batched": Model(
        (tensor("IN0"), tensor("IN1", more="optional: true")), (tensor("OUT0"), tensor("OUT1")), batch=8, body=SOME
    ),
    "repeat": Model(INTS, (tensor("OUT", (1,), "INT32"),), decoupled=True, body=REPEAT),
    "repeat_rows": Model(
        INTS,
        (tensor("OUT", (1,), "INT32"), tensor("AGAIN", (1,), "INT32")),
        batch=4,
        decoupled=True,
        body=REPEAT_ROWS,
    ),
    "hundred": Model(INTS, (tensor("OUT", (1,), "INT32"),), body=HUNDRED),
    "hundred_batched": Model(INTS, (tensor("OUT", (1,), "INT32"),), batch=4, body=HUNDRED),
    "fail": Model((tensor("IN"),), (tensor("OUT"),), body=FAIL, more=_NO_WARMUP),
    "words": Model((tensor("IN", (-1,), "STRING"),), (tensor("OUT", (-1,), "STRING"),), body=ECHO),
    "flags": Model(
        (tensor("IN", (1,), "INT32"),), (tensor("OUT", (2,), "INT32"),), batch=4, body=SEQUENCE, more=_CONTROLS
    ),
    # Ensembles.
    "one_step": Ensemble(X, Y, chain("plain")),
    "two_steps": Ensemble(X, Y, chain("plain", "plain")),
    "strings": Ensemble((tensor("X", (-1,), "STRING"),), (tensor("Y", (-1,), "STRING"),), chain("words", "words")),
    "all_batched": Ensemble(X, Y, chain("batched", "batched"), batch=8),
    "batched_to_vector": Ensemble(X, (tensor("Y", (-1,), "INT64"),), chain("batched", "shape_vector"), batch=8),
    "batched_to_rows": Ensemble(X, (tensor("Y", (-1,), "INT64"),), chain("batched", "shape"), batch=8),
    "vector_to_batched": Ensemble(X, (tensor("Y", (2,), "INT64"),), chain("plain", "shape_batched")),
    "rows_to_batched": Ensemble(
        (tensor("X", (-1, 4)),), (tensor("Y", (-1, 2), "INT64"),), chain("rows", "shape_batched")
    ),
    "there_and_back": Ensemble(X, Y, chain("batched", "plain", "batched"), batch=8),
    "plain_in_batched": Ensemble(X, Y, chain("plain"), batch=8),
    "batched_in_plain": Ensemble(X, Y, chain("batched")),
    "batched_in_rows": Ensemble((tensor("X", (-1, 4)),), (tensor("Y", (-1, 4)),), chain("batched")),
    "zero": Ensemble(FREE, (tensor("Y", (-1,)),), chain("free", "free")),
    "zero_batched": Ensemble(FREE, (tensor("Y", (-1,)),), chain("free_batched", "free_batched"), batch=8),
    "zero_mixed": Ensemble(FREE, (tensor("Y", (-1,)),), chain("free", "free_batched"), batch=8),
    "zero_rows": Ensemble((tensor("X", (-1, 4)),), (tensor("Y", (-1, 4)),), chain("rows", "rows")),
    "zero_strings": Ensemble((tensor("X", (-1,), "STRING"),), (tensor("Y", (-1,), "STRING"),), chain("words", "words")),
    "outer_reshape": Ensemble(
        (tensor("X", (4,), more="reshape { shape: [2, 2] }"),),
        (tensor("Y", (4,), more="reshape { shape: [2, 2] }"),),
        chain("matrix"),
    ),
    "step_reshape": Ensemble(
        X,
        (*Y, tensor("S", (2,), "INT64")),
        (Step("reshaped", {"IN": "X"}, {"OUT": "t", "SHAPE": "S"}), one("plain", "t")),
    ),
    "free_reshape": Ensemble(
        (tensor("X", (-1, 4, -1)),), (tensor("Y", (-1, 4, -1)),), chain("reshaped_free", "reshaped_free")
    ),
    "free_outer_reshape": Ensemble(
        (tensor("X", (-1, 4), more="reshape { shape: [-1, 4] }"),),
        (tensor("Y", (-1, 2, 2), more="reshape { shape: [-1, 4] }"),),
        chain("rows"),
    ),
    "fork": Ensemble(X, (*Y, tensor("Z")), (one("plain", "X", "t"), one("plain", "t", "Y"), one("free", "t", "Z"))),
    "fork_with_failure": Ensemble(X, (*Y, tensor("Z")), (one("plain"), one("fail", "X", "Z"))),
    "output_used_inside": Ensemble(X, (*Y, tensor("Z")), (one("plain"), one("free", "Y", "Z"))),
    "join": Ensemble(
        (*X, tensor("X2")),
        Y,
        (one("plain", "X", "a"), one("free", "X2", "b"), Step("add", {"IN0": "a", "IN1": "b"}, {"OUT": "Y"})),
    ),
    "optional": Ensemble(
        (*X, tensor("X2", more="optional: true")),
        (*Y, tensor("Z")),
        (Step("some", {"IN0": "X", "IN1": "X2"}, {"OUT0": "Y", "OUT1": "Z"}),),
    ),
    "optional_batched": Ensemble(
        (*X, tensor("X2", more="optional: true")),
        (*Y, tensor("Z")),
        (Step("some_batched", {"IN0": "X", "IN1": "X2"}, {"OUT0": "Y", "OUT1": "Z"}),),
        batch=8,
    ),
    "optional_chain": Ensemble(
        (*X, tensor("X2", more="optional: true")),
        (*Y, tensor("Z")),
        (
            Step("some", {"IN0": "X", "IN1": "X2"}, {"OUT0": "a", "OUT1": "b"}),
            Step("some", {"IN0": "a", "IN1": "b"}, {"OUT0": "Y", "OUT1": "Z"}),
        ),
    ),
    "optional_to_required": Ensemble(
        (*X, tensor("X2", more="optional: true")), Y, (Step("add", {"IN0": "X", "IN1": "X2"}, {"OUT": "Y"}),)
    ),
    "missing_to_required": Ensemble(
        X,
        Y,
        (
            Step("some", {"IN0": "X"}, {"OUT0": "a", "OUT1": "b"}),
            Step("add", {"IN0": "a", "IN1": "b"}, {"OUT": "Y"}),
        ),
    ),
    "failing": Ensemble(X, Y, chain("plain", "fail")),
    "failing_inside": Ensemble(X, Y, (Step("failing", {"X": "X"}, {"Y": "Y"}),)),
    "nested": Ensemble(X, Y, (Step("two_steps", {"X": "X"}, {"Y": "t"}), one("free", "t"))),
    "stream": Ensemble(INT, INT_OUT, chain("repeat")),
    "stream_then": Ensemble(INT, INT_OUT, chain("repeat", "hundred")),
    "stream_fork": Ensemble(
        INT,
        (*INT_OUT, tensor("Z", (1,), "INT32")),
        (one("repeat", "X", "t"), one("hundred", "t"), one("hundred", "t", "Z")),
    ),
    "stream_stream": Ensemble(INT, INT_OUT, chain("repeat", "repeat")),
    "stream_nested": Ensemble(INT, INT_OUT, (Step("stream_then", {"X": "X"}, {"Y": "t"}), one("hundred", "t"))),
    "stream_rows": Ensemble(
        INT,
        (*INT_OUT, tensor("Z", (1,), "INT32")),
        (Step("repeat_rows", {"IN": "X"}, {"OUT": "t", "AGAIN": "Z"}), one("hundred_batched", "t")),
        batch=4,
    ),
    "sequence": Ensemble(INT, (tensor("Y", (2,), "INT32"),), chain("hundred_batched", "flags"), batch=4),
}


@dataclass(frozen=True)
class Call:
    """One request, over HTTP and gRPC, or over a stream."""

    model: str
    inputs: dict[str, Any]
    outputs: tuple[str, ...] = ()
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


def floats(*shape: int) -> Any:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


ROW = ints(1).reshape(1, 1)

CALLS: dict[str, Call] = {
    "one step": Call("one_step", {"X": floats(4)}),
    "an id": Call("one_step", {"X": floats(4)}, id="abc"),
    "two steps": Call("two_steps", {"X": floats(4)}),
    "nested": Call("nested", {"X": floats(4)}),
    "strings": Call("strings", {"X": np.array([b"alpha", b"", "βήτα".encode()], np.object_)}),
    "wrong shape": Call("two_steps", {"X": floats(5)}),
    "wrong datatype": Call("two_steps", {"X": ints(1, 2, 3, 4)}),
    "unknown input": Call("two_steps", {"X": floats(4), "W": floats(4)}),
    "no input": Call("join", {"X": floats(4)}),
    "unknown output": Call("two_steps", {"X": floats(4)}, ("W",)),
    "a tensor between steps as output": Call("two_steps", {"X": floats(4)}, ("t1",)),
    "join": Call("join", {"X": floats(4), "X2": floats(4)}),
    # Batching and none.
    "one row": Call("all_batched", {"X": floats(1, 4)}),
    "three rows": Call("all_batched", {"X": floats(3, 4)}),
    "rows over the limit": Call("all_batched", {"X": floats(9, 4)}),
    "a row to a vector": Call("batched_to_vector", {"X": floats(1, 4)}),
    "rows to a vector": Call("batched_to_vector", {"X": floats(3, 4)}),
    "a row to rows": Call("batched_to_rows", {"X": floats(1, 4)}),
    "rows to rows": Call("batched_to_rows", {"X": floats(3, 4)}),
    "a vector to a batch": Call("vector_to_batched", {"X": floats(4)}),
    "rows to a batch": Call("rows_to_batched", {"X": floats(3, 4)}),
    "no rows to a batch": Call("rows_to_batched", {"X": floats(0, 4)}),
    "rows beyond a step's batch": Call("rows_to_batched", {"X": floats(9, 4)}),
    "there and back, one row": Call("there_and_back", {"X": floats(1, 4)}),
    "there and back, rows": Call("there_and_back", {"X": floats(2, 4)}),
    "a plain step in a batch of one": Call("plain_in_batched", {"X": floats(1, 4)}),
    "a plain step in a batch": Call("plain_in_batched", {"X": floats(2, 4)}),
    "a batching step without": Call("batched_in_plain", {"X": floats(4)}),
    "a batching step in rows": Call("batched_in_rows", {"X": floats(3, 4)}),
    "a batching step in no rows": Call("batched_in_rows", {"X": floats(0, 4)}),
    # No elements.
    "zero": Call("zero", {"X": floats(0)}),
    "not zero": Call("zero", {"X": floats(3)}),
    "zero, batched": Call("zero_batched", {"X": floats(2, 0)}),
    "zero, mixed": Call("zero_mixed", {"X": floats(1, 0)}),
    "zero rows": Call("zero_rows", {"X": floats(0, 4)}),
    "zero strings": Call("zero_strings", {"X": np.array([], np.object_)}),
    # Reshape.
    "reshape of the ensemble": Call("outer_reshape", {"X": floats(4)}),
    "reshape of a step": Call("step_reshape", {"X": floats(4)}),
    "reshape with free sizes": Call("free_reshape", {"X": floats(2, 4, 3)}),
    "reshape of nothing": Call("free_reshape", {"X": floats(0, 4, 3)}),
    "reshape of the output": Call("free_outer_reshape", {"X": floats(3, 4)}),
    "reshape of no rows": Call("free_outer_reshape", {"X": floats(0, 4)}),
    # Some of the outputs.
    "both outputs": Call("fork", {"X": floats(4)}),
    "both outputs by name": Call("fork", {"X": floats(4)}, ("Z", "Y")),
    "first output": Call("fork", {"X": floats(4)}, ("Y",)),
    "second output": Call("fork", {"X": floats(4)}, ("Z",)),
    "the output without the failing step": Call("fork_with_failure", {"X": floats(4)}, ("Y",)),
    "the output of the failing step": Call("fork_with_failure", {"X": floats(4)}, ("Z",)),
    "all outputs, one failing": Call("fork_with_failure", {"X": floats(4)}),
    "an output that a step uses": Call("output_used_inside", {"X": floats(4)}, ("Y",)),
    # Optional inputs.
    "optional given": Call("optional", {"X": floats(4), "X2": floats(4)}),
    "optional left out": Call("optional", {"X": floats(4)}),
    "optional left out, its output asked for": Call("optional", {"X": floats(4)}, ("Z",)),
    "optional left out, the other asked for": Call("optional", {"X": floats(4)}, ("Y",)),
    "required left out": Call("optional", {"X2": floats(4)}),
    "optional given, batched": Call("optional_batched", {"X": floats(2, 4), "X2": floats(2, 4)}),
    "optional left out, batched": Call("optional_batched", {"X": floats(2, 4)}),
    "optional through two steps": Call("optional_chain", {"X": floats(4), "X2": floats(4)}),
    "optional left out of two steps": Call("optional_chain", {"X": floats(4)}),
    "optional that a step requires": Call("optional_to_required", {"X": floats(4)}),
    "optional that a step requires, given": Call("optional_to_required", {"X": floats(4), "X2": floats(4)}),
    "an output that is missing is required": Call("missing_to_required", {"X": floats(4)}),
    # Failures and sequences.
    "a step fails": Call("failing", {"X": floats(4)}),
    "a step of a step fails": Call("failing_inside", {"X": floats(4)}),
    "no sequence": Call("sequence", {"X": ROW}),
    "sequence flags without a sequence": Call(
        "two_steps", {"X": floats(4)}, parameters={"sequence_id": 9, "sequence_start": True}
    ),
    "other parameters": Call("two_steps", {"X": floats(4)}, parameters={"colour": "blue"}),
    # A unary call of what answers many times.
    "unary call of a stream": Call("stream", {"X": ints(1)}),
    "unary call of a stream inside": Call("stream_nested", {"X": ints(1)}),
}

STREAMED: dict[str, Call] = {
    f"{model}, {count}": Call(model, {"X": ints(count)}, id=f"{count}")
    for model in ("stream", "stream_then", "stream_fork", "stream_nested", "stream_stream")
    for count in (0, 1, 3)
}
STREAMED |= {
    f"rows, {count}": Call("stream_rows", {"X": ints(count).reshape(1, 1)}, id=f"{count}") for count in (0, 1, 3)
}
STREAMED |= {
    f"rows, {count}, one output": Call("stream_rows", {"X": ints(count).reshape(1, 1)}, ("Z",), id=f"{count}")
    for count in (0, 3)
}
STREAMED |= {
    "an ensemble without streams": Call("two_steps", {"X": floats(4)}, id="0"),
    "a failing step": Call("failing", {"X": floats(4)}, id="0"),
    "a wrong shape": Call("stream", {"X": ints(1, 2)}, id="0"),
}
