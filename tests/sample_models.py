"""A repository of small models, one per thing a client may want to see; tests of every folder ask for them by name.

``write_models(repository, "add_sub", "pipeline")`` writes those (and what they are made of). Each writer's docstring
says what the model does; ``ALL`` names them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

#: Every datatype of the protocol, by the names config.pbtxt gives them.
DATATYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BF16", "BYTES"),
)

Shape = Sequence[int | str]
Writer = Callable[[Path], None]


def write_models(repository: Path, *names: str) -> Path:
    """Writes models below ``repository`` and returns it; "identity_fp32" and the like name a datatype."""
    for name in names:
        if name.startswith("identity_"):
            _identity(repository / name, name.removeprefix("identity_").upper())
        else:
            _WRITERS[name](repository / name)
    return repository


def write_config(directory: Path, text: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text(f'name: "{directory.name}"\n' + textwrap.dedent(text).strip() + "\n")


def write_python(directory: Path, source: str, version: int = 1) -> None:
    """``model.py`` of one version."""
    (directory / str(version)).mkdir(parents=True, exist_ok=True)
    (directory / str(version) / "model.py").write_text(textwrap.dedent(source).lstrip())


def onnx_bytes(
    nodes: Sequence[Any],
    inputs: Sequence[tuple[str, int, Shape]],
    outputs: Sequence[tuple[str, int, Shape]],
    initializers: Sequence[Any] = (),
) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(*each) for each in outputs],
        list(initializers),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def write_onnx(directory: Path, data: bytes, version: int = 1) -> None:
    (directory / str(version)).mkdir(parents=True, exist_ok=True)
    (directory / str(version) / "model.onnx").write_bytes(data)


def plus_constant(constant: float) -> bytes:
    """An onnx model Y = X + constant for FP32 [batch, 4]."""
    return onnx_bytes(
        [helper.make_node("Add", ["X", "constant"], ["Y"])],
        [("X", TensorProto.FLOAT, ["batch", 4])],
        [("Y", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor("constant", TensorProto.FLOAT, [], [constant])],
    )


_FOUR_FLOATS = """
    max_batch_size: 8
    input { name: "X" data_type: TYPE_FP32 dims: [4] }
    output { name: "Y" data_type: TYPE_FP32 dims: [4] }
"""


def _identity(directory: Path, datatype: str) -> None:
    """IN → OUT of one datatype and any shape of one dimension, in python."""
    kind = "STRING" if datatype == "BYTES" else datatype
    write_config(
        directory,
        f"""
        backend: "python"
        input {{ name: "IN" data_type: TYPE_{kind} dims: [-1] }}
        output {{ name: "OUT" data_type: TYPE_{kind} dims: [-1] }}
        """,
    )
    write_python(directory, 'class Model:\n    def infer(self, inputs):\n        return {"OUT": inputs["IN"]}\n')


def _add_sub(directory: Path) -> None:
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1: FP32 [16], batched, onnx."""
    vector: Shape = ["batch", 16]
    write_onnx(
        directory,
        onnx_bytes(
            [
                helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
                helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
            ],
            [(name, TensorProto.FLOAT, vector) for name in ("INPUT0", "INPUT1")],
            [(name, TensorProto.FLOAT, vector) for name in ("OUTPUT0", "OUTPUT1")],
        ),
    )
    write_config(
        directory,
        """
        backend: "onnxruntime"
        max_batch_size: 8
        input { name: "INPUT0" data_type: TYPE_FP32 dims: [16] }
        input { name: "INPUT1" data_type: TYPE_FP32 dims: [16] }
        output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [16] }
        output { name: "OUTPUT1" data_type: TYPE_FP32 dims: [16] }
        dynamic_batching { }
        """,
    )


def _no_config(directory: Path) -> None:
    """Y = X + 1 for FP32 [batch, 4]; without a config.pbtxt."""
    write_onnx(directory, plus_constant(1))


def _upper(directory: Path) -> None:
    """TEXT in upper case: BYTES [-1], onnx."""
    write_onnx(
        directory,
        onnx_bytes(
            [helper.make_node("StringNormalizer", ["TEXT"], ["UPPER"], case_change_action="UPPER", locale="C")],
            [("TEXT", TensorProto.STRING, ["words"])],
            [("UPPER", TensorProto.STRING, ["words"])],
        ),
    )
    write_config(
        directory,
        """
        platform: "onnxruntime_onnx"
        input { name: "TEXT" data_type: TYPE_STRING dims: [-1] }
        output { name: "UPPER" data_type: TYPE_STRING dims: [-1] }
        """,
    )


def _repeat(directory: Path) -> None:
    """Decoupled: one response per element of IN, then none; a negative element raises."""
    write_config(
        directory,
        """
        backend: "python"
        model_transaction_policy { decoupled: true }
        input { name: "IN" data_type: TYPE_INT32 dims: [-1] }
        output { name: "OUT" data_type: TYPE_INT32 dims: [1] }
        output { name: "INDEX" data_type: TYPE_UINT32 dims: [1] }
        """,
    )
    write_python(
        directory,
        """
        import numpy as np


        class Model:
            def infer(self, inputs):
                for index, value in enumerate(inputs["IN"]):
                    if value < 0:
                        raise ValueError(f"element {index} is negative")
                    yield {"OUT": np.array([value], np.int32), "INDEX": np.array([index], np.uint32)}
        """,
    )


def _repeat_async(directory: Path) -> None:
    """As repeat, but asynchronous: waits DELAY milliseconds before each response."""
    write_config(
        directory,
        """
        backend: "python"
        model_transaction_policy { decoupled: true }
        input { name: "IN" data_type: TYPE_INT32 dims: [-1] }
        input { name: "DELAY" data_type: TYPE_INT32 dims: [1] optional: true }
        output { name: "OUT" data_type: TYPE_INT32 dims: [1] }
        """,
    )
    write_python(
        directory,
        """
        import asyncio

        import numpy as np


        class Model:
            async def infer(self, inputs):
                delay = inputs["DELAY"][0] / 1000 if "DELAY" in inputs else 0
                for value in inputs["IN"]:
                    await asyncio.sleep(delay)
                    yield {"OUT": np.array([value], np.int32)}
        """,
    )


def _burst(keyword: str) -> Writer:
    """Decoupled: COUNT responses of one MiB each, to see back-pressure."""

    def write(directory: Path) -> None:
        write_config(
            directory,
            """
            backend: "python"
            model_transaction_policy { decoupled: true }
            input { name: "COUNT" data_type: TYPE_INT32 dims: [1] }
            output { name: "OUT" data_type: TYPE_UINT8 dims: [-1] }
            """,
        )
        write_python(
            directory,
            f"""
            import numpy as np


            class Model:
                {keyword}def infer(self, inputs):
                    for number in range(inputs["COUNT"][0]):
                        yield {{"OUT": np.full(1 << 20, number % 256, np.uint8)}}
            """,
        )

    return write


def _words(directory: Path) -> None:
    """Decoupled, for generate: one response per word of text_input, "max_words" of them at most."""
    write_config(
        directory,
        """
        backend: "python"
        model_transaction_policy { decoupled: true }
        input { name: "text_input" data_type: TYPE_STRING dims: [1] }
        output { name: "text_output" data_type: TYPE_STRING dims: [1] }
        """,
    )
    write_python(
        directory,
        """
        class Model:
            def infer(self, inputs, parameters):
                words = inputs["text_input"][0].decode().split()
                for word in words[: parameters.get("max_words", len(words))]:
                    yield {"text_output": [word]}
        """,
    )


def _accumulate(strategy: str) -> Writer:
    """A running sum per sequence, kept by the model itself under the sequence's id: INT32 [1]."""

    def write(directory: Path) -> None:
        write_config(
            directory,
            f"""
            backend: "python"
            max_batch_size: 4
            input {{ name: "IN" data_type: TYPE_INT32 dims: [1] }}
            output {{ name: "SUM" data_type: TYPE_INT32 dims: [1] }}
            sequence_batching {{
              max_sequence_idle_microseconds: {_IDLE_MICROSECONDS}
              {strategy}
              control_input {{ name: "START" control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }} }}
              control_input {{ name: "END" control {{ kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1] }} }}
              control_input {{ name: "READY" control {{ kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] }} }}
              control_input {{ name: "ID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING }} }}
            }}
            """,
        )
        write_python(
            directory,
            """
            import numpy as np


            class Model:
                def load(self, context):
                    self.sums = {}

                def infer(self, inputs):
                    answer = np.zeros_like(inputs["IN"])
                    for row in range(len(answer)):
                        if not inputs["READY"][row, 0]:
                            continue
                        name = inputs["ID"][row, 0]
                        if inputs["START"][row, 0]:
                            self.sums[name] = 0
                        self.sums[name] += int(inputs["IN"][row, 0])
                        answer[row, 0] = self.sums[name]
                        if inputs["END"][row, 0]:
                            del self.sums[name]
                    return {"SUM": answer}
            """,
        )

    return write


def _accumulate_state(directory: Path) -> None:
    """A running sum per sequence in implicit state: FP32 [1], onnx; a start resets it."""
    row: Shape = ["batch", 1]
    write_onnx(
        directory,
        onnx_bytes(
            [
                helper.make_node("Add", ["IN", "STATE_IN"], ["STATE_OUT"]),
                helper.make_node("Identity", ["STATE_OUT"], ["SUM"]),
            ],
            [(name, TensorProto.FLOAT, row) for name in ("IN", "STATE_IN")],
            [(name, TensorProto.FLOAT, row) for name in ("SUM", "STATE_OUT")],
        ),
    )
    write_config(
        directory,
        f"""
        backend: "onnxruntime"
        max_batch_size: 4
        input {{ name: "IN" data_type: TYPE_FP32 dims: [1] }}
        output {{ name: "SUM" data_type: TYPE_FP32 dims: [1] }}
        sequence_batching {{
          max_sequence_idle_microseconds: {_IDLE_MICROSECONDS}
          oldest {{ max_candidate_sequences: 16 }}
          state {{
            input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_FP32 dims: [1]
            initial_state {{ name: "zero" data_type: TYPE_FP32 dims: [1] zero_data: true }}
          }}
        }}
        """,
    )


def _double(directory: Path) -> None:
    """Y = 2 X: FP32 [16], batched, onnx."""
    write_onnx(
        directory,
        onnx_bytes(
            [helper.make_node("Add", ["X", "X"], ["Y"])],
            [("X", TensorProto.FLOAT, ["batch", 16])],
            [("Y", TensorProto.FLOAT, ["batch", 16])],
        ),
    )
    write_config(
        directory,
        """
        backend: "onnxruntime"
        max_batch_size: 8
        input { name: "X" data_type: TYPE_FP32 dims: [16] }
        output { name: "Y" data_type: TYPE_FP32 dims: [16] }
        """,
    )


def _pipeline(directory: Path) -> None:
    """Ensemble of three steps: TOTAL = 2 (A + B) and PART = 2 (A - B), over add_sub and double twice."""
    write_models(directory.parent, "add_sub", "double")
    write_config(
        directory,
        """
        platform: "ensemble"
        max_batch_size: 8
        input { name: "A" data_type: TYPE_FP32 dims: [16] }
        input { name: "B" data_type: TYPE_FP32 dims: [16] }
        output { name: "TOTAL" data_type: TYPE_FP32 dims: [16] }
        output { name: "PART" data_type: TYPE_FP32 dims: [16] }
        ensemble_scheduling {
          step {
            model_name: "add_sub" model_version: -1
            input_map { key: "INPUT0" value: "A" } input_map { key: "INPUT1" value: "B" }
            output_map { key: "OUTPUT0" value: "sum" } output_map { key: "OUTPUT1" value: "difference" }
          }
          step {
            model_name: "double" model_version: -1
            input_map { key: "X" value: "sum" } output_map { key: "Y" value: "TOTAL" }
          }
          step {
            model_name: "double" model_version: -1
            input_map { key: "X" value: "difference" } output_map { key: "Y" value: "PART" }
          }
        }
        """,
    )
    (directory / "1").mkdir(parents=True, exist_ok=True)


def _classify(directory: Path) -> None:
    """SCORES unchanged, FP32 [4], batched, with a labels file: for the classification extension."""
    write_onnx(
        directory,
        onnx_bytes(
            [helper.make_node("Identity", ["X"], ["SCORES"])],
            [("X", TensorProto.FLOAT, ["batch", 4])],
            [("SCORES", TensorProto.FLOAT, ["batch", 4])],
        ),
    )
    write_config(
        directory,
        """
        backend: "onnxruntime"
        max_batch_size: 8
        input { name: "X" data_type: TYPE_FP32 dims: [4] }
        output { name: "SCORES" data_type: TYPE_FP32 dims: [4] label_filename: "labels.txt" }
        """,
    )
    (directory / "labels.txt").write_text("cat\ndog\nbird\nfish\n")


def _cached(directory: Path) -> None:
    """Y = X + 1 with a response cache; needs --cache-config."""
    write_onnx(directory, plus_constant(1))
    write_config(directory, 'backend: "onnxruntime"\nresponse_cache { enable: true }\n' + textwrap.dedent(_FOUR_FLOATS))


#: Of a sequence between two requests: longer than a busy machine stalls; its slot is taken for so long.
_IDLE_MICROSECONDS = 10_000_000
#: Milliseconds: a run of a slow model that shall last until a test releases it.
HELD = 100_000


def release_file(repository: Path, model: str = "slow") -> Path:
    """The file that ends one held run of a slow model in a repository."""
    return repository.parent / f"release_{model}"


def _slow(rules: str, least: int = 1) -> Writer:
    """Sleeps MILLISECONDS (INT32 [1]), ``least`` at least, and gives them back as SLEPT; one request at a time.

    A run of ``HELD`` or more also ends when it finds the file ``release_file`` names, and removes it.
    """

    def write(directory: Path) -> None:
        write_config(
            directory,
            f"""
            backend: "python"
            max_batch_size: 1
            input {{ name: "MILLISECONDS" data_type: TYPE_INT32 dims: [1] }}
            output {{ name: "SLEPT" data_type: TYPE_INT32 dims: [1] }}
            {rules}
            """,
        )
        write_python(
            directory,
            f"""
            import time


            class Model:
                def load(self, context):
                    self.release = context.directory.parents[2] / f"release_{{context.model_name}}"

                def infer(self, inputs):
                    milliseconds = max({least}, int(inputs["MILLISECONDS"].max()))
                    if milliseconds >= {HELD}:
                        self.hold(time.monotonic() + milliseconds / 1000)
                    elif milliseconds:
                        time.sleep(milliseconds / 1000)
                    return {{"SLEPT": inputs["MILLISECONDS"]}}

                def hold(self, ends):
                    while time.monotonic() < ends:
                        try:
                            self.release.unlink()
                        except FileNotFoundError:
                            time.sleep(0.002)
                        else:
                            return
            """,
        )

    return write


def _raises(directory: Path) -> None:
    """Raises ValueError whenever an element of X is negative; Y = X otherwise. FP32 [4], batched, python."""
    write_config(directory, 'backend: "python"\ndynamic_batching { }\n' + textwrap.dedent(_FOUR_FLOATS))
    write_python(
        directory,
        """
        class Model:
            def infer(self, inputs):
                if (inputs["X"] < 0).any():
                    raise ValueError("X is negative")
                return {"Y": inputs["X"]}
        """,
    )


def _versions(directory: Path) -> None:
    """Versions 1 and 2 side by side: Y = X + version."""
    for version in (1, 2):
        write_onnx(directory, plus_constant(version), version)
    write_config(directory, 'backend: "onnxruntime"\nversion_policy { all { } }\n' + textwrap.dedent(_FOUR_FLOATS))


def _torch_script(directory: Path) -> None:
    """Y = 3 X: FP32 [4], batched, TorchScript."""
    import warnings

    import torch

    (directory / "1").mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # TorchScript is deprecated, and its files are everywhere.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda x: x * 3, torch.ones(2, 4))
        traced.save(str(directory / "1" / "model.pt"))
    write_config(directory, 'backend: "pytorch"\n' + textwrap.dedent(_FOUR_FLOATS))


_PRIORITIES = """dynamic_batching {
  priority_levels: 2 default_priority_level: 2
  default_queue_policy { allow_timeout_override: true }
}"""
_SHORT_QUEUE = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"

_WRITERS: dict[str, Writer] = {
    "accumulate": _accumulate("direct { }"),
    "accumulate_oldest": _accumulate("oldest { max_candidate_sequences: 8 }"),
    "accumulate_state": _accumulate_state,
    "add_sub": _add_sub,
    "burst": _burst(""),
    "burst_async": _burst("async "),
    "cached": _cached,
    "classify": _classify,
    "double": _double,
    "no_config": _no_config,
    "pipeline": _pipeline,
    "raises": _raises,
    "repeat": _repeat,
    "repeat_async": _repeat_async,
    "slow": _slow(""),
    "sometimes_slow": _slow("", 0),
    "slow_priorities": _slow(_PRIORITIES),
    "slow_short_queue": _slow(_SHORT_QUEUE),
    "torch_script": _torch_script,
    "upper": _upper,
    "versions": _versions,
    "words": _words,
}

#: Every model there is.
ALL = (*_WRITERS, *(f"identity_{datatype.lower()}" for datatype in DATATYPES))
