"""Python models inside the server: the user's class through its life, and every way it can misbehave."""

from __future__ import annotations

import asyncio
import gc
import sys
import textwrap
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from config_text import parameter, tensors
from load_contexts import MakeContext

from isochrone.errors import ConfigError, ModelFailed, Unsupported
from isochrone.worker.backends.python.backend import load

FLOATS = tensors("input", x="FP32") + tensors("output", y="FP32")
DECOUPLED = FLOATS + "model_transaction_policy { decoupled: true }"
ONE = {"x": np.array([[1.0, 2.0]], np.float32)}


def write(directory: Path, source: str, name: str = "model.py") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(textwrap.dedent(source))


@pytest.fixture(autouse=True)
def _nothing_stays_imported() -> Iterator[None]:
    path, finders = list(sys.path), list(sys.meta_path)
    yield
    gc.collect()
    assert sys.path == path
    left = [finder for finder in sys.meta_path if finder not in finders]
    for finder in left:  # an executable that a test did not close
        finder.remove()  # type: ignore[attr-defined]
    assert not [name for name in list(sys.modules) if name.startswith("isochrone_model_")]


def test_load_infer_close(tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        """
        import numpy as np

        class Model:
            def load(self, context):
                self.context = context
                self.factor = np.float32(context.parameters["factor"])

            def infer(self, inputs):
                return {"y": inputs["x"] * self.factor}

            def close(self):
                (self.context.directory / "closed").write_text(
                    f"{self.context.model_name} {self.context.model_version} {self.context.instance}"
                    f" {self.context.config['input'][0]['name']}"
                )
        """,
    )
    executable = load(make_context(FLOATS + parameter("factor", "3"), version="7"))
    assert executable.inline_allowed
    assert not executable.decoupled
    assert executable.execute(ONE, None)["y"].tolist() == [[3.0, 6.0]]
    executable.close()
    assert (tmp_path / "closed").read_text() == "m 7 0 x"
    assert not (tmp_path / "__pycache__").exists()


def test_versions_keep_their_own_helper_modules(tmp_path: Path, make_context: MakeContext) -> None:
    source = """
    import json
    import features
    import package.deep
    from package import deep as also_deep
    from package.deep import LEVEL

    class Model:
        def infer(self, inputs):
            import late
            assert package.deep is also_deep and json.dumps(1) == "1"
            return {"y": inputs["x"] * features.FACTOR * late.FACTOR * LEVEL}
    """
    executables = []
    for version in (2, 3):
        directory = tmp_path / str(version)
        write(directory, source)
        write(directory, "from shared_constant import FACTOR", "features.py")
        write(directory, f"FACTOR = {version}", "shared_constant.py")
        write(directory, "FACTOR = 10", "late.py")
        write(directory / "package", "", "__init__.py")
        write(directory / "package", "import shared_constant\nLEVEL = shared_constant.FACTOR", "deep.py")
        executables.append(load(make_context(FLOATS, version=str(version), directory=directory)))
    assert "features" not in sys.modules
    for executable, factor in zip(executables, (40, 90), strict=True):
        assert executable.execute(ONE, None)["y"][0, 0] == factor
    executables[0].close()
    assert executables[1].execute(ONE, None)["y"][0, 0] == 90
    executables[1].close()


def test_a_changed_file_is_read_again(tmp_path: Path, make_context: MakeContext) -> None:
    for factor in (2, 3, 4):  # same size, same second
        write(tmp_path, f"class Model:\n    def infer(self, inputs):\n        return {{'y': inputs['x'] * {factor}}}")
        executable = load(make_context(FLOATS))
        assert executable.execute(ONE, None)["y"][0, 0] == factor
        executable.close()


def test_closing_frees_what_the_model_and_its_module_held(tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        """
        import numpy as np

        class Weights(np.ndarray):
            pass

        TABLE = np.zeros(4, np.float32).view(Weights)

        class Model:
            def load(self, context):
                self.weights = np.zeros(4, np.float32).view(Weights)

            def infer(self, inputs):
                return {"y": inputs["x"]}
        """,
    )
    executable = load(make_context(FLOATS))
    model: Any = executable._model._model  # type: ignore[attr-defined]
    table = weakref.ref(sys.modules[type(model).__module__].TABLE)
    weights = weakref.ref(model.weights)
    del model
    gc.disable()
    try:
        executable.close()
        assert weights() is None
        assert table() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("raise ValueError('no such word')", "infer raised ValueError: no such word (model.py:5)"),
        ("raise SystemExit(3)", "infer raised SystemExit: 3 (model.py:5)"),
        ("raise KeyboardInterrupt", "infer raised KeyboardInterrupt (model.py:5)"),
        ("np.zeros(2) + np.zeros(3)", "infer raised ValueError: operands could not be broadcast"),
        ("inputs['nothing']", "infer raised KeyError: 'nothing' (model.py:5)"),
        ("helper.fail()", "infer raised RuntimeError: helped (helper.py:2)"),
        ("raise Exception('x' * 100000)", "infer raised Exception: " + "x" * 2000 + "… (model.py:5)"),
        ("return None", "infer returned a wrong result: expected a dict of output name to array, given None"),
        ("return {}", "infer returned a wrong result: output 'y': expected an array, given no such key"),
        ("return {'y': inputs['x'], 'q': 1}", "infer returned a wrong result: output 'q': expected one of 'y'"),
        ("return {'y': inputs['x'].astype('f8')}", "output 'y': expected FP32 (float32), given FP64 (float64)"),
        ("return {'y': np.float64(1)}", "output 'y': expected FP32 (float32), given FP64 (float64)"),
        ("return {'y': ['a']}", "output 'y': expected FP32, given could not convert"),
        ("return {'y': [[1], [1, 2]]}", "output 'y': expected FP32, given setting an array element"),
        ("return {'y': None}", "output 'y': expected FP32, given None"),
    ],
)
def test_whatever_infer_does_is_told(tmp_path: Path, make_context: MakeContext, statement: str, message: str) -> None:
    write(tmp_path, f"import helper\nimport numpy as np\nclass Model:\n  def infer(self, inputs):\n    {statement}")
    write(tmp_path, "def fail():\n    raise RuntimeError('helped')", "helper.py")
    executable = load(make_context(FLOATS))
    with pytest.raises(ModelFailed) as failed:
        executable.execute(ONE, None)
    assert str(failed.value).startswith("model 'm' version 1: ")
    assert message in str(failed.value)
    executable.close()


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("", ConfigError, "model.py: Model: expected a class, given no such name"),
        ("Model = 3", ConfigError, "model.py: Model: expected a class, given a int"),
        ("class Model: pass", ConfigError, "Model.infer: expected a method infer(self, inputs), given no such"),
        ("class Model:\n  async def infer(self, i): ...", ConfigError, "expected a plain method, given a coroutine"),
        ("class Model:\n  def infer(self, i): yield", ConfigError, "decoupled: true } in the configuration"),
        ("x = = 1", ModelFailed, "model 'm' version 1: import raised SyntaxError: invalid syntax (model.py, line 1)"),
        ("\nimport nothing_of_that_name", ModelFailed, "import raised ModuleNotFoundError: No module named"),
        ("import sys; sys.exit(1)", ModelFailed, "import raised SystemExit: 1 (model.py:1)"),
        (
            "class Model:\n  def __init__(self): 1 / 0\n  def infer(self, i): ...",
            ModelFailed,
            "Model() raised ZeroDivisionError: division by zero (model.py:2)",
        ),
        (
            "class Model:\n  def load(self, c): 1 / 0\n  def infer(self, i): ...",
            ModelFailed,
            "load raised ZeroDivisionError: division by zero (model.py:2)",
        ),
    ],
)
def test_a_model_that_cannot_load_says_why(
    tmp_path: Path, make_context: MakeContext, source: str, error: type[Exception], message: str
) -> None:
    write(tmp_path, source)
    with pytest.raises(error) as raised:
        load(make_context(FLOATS))
    assert message in str(raised.value)


def test_a_missing_file_is_named(make_context: MakeContext) -> None:
    with pytest.raises(ConfigError, match=r"model\.py: model file: expected a python file"):
        load(make_context(FLOATS))


def test_parameters_are_checked(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, "class Model:\n  def infer(self, i): ...")
    with pytest.raises(ConfigError, match=r'"isolation".*one of thread, process, given \'jail\''):
        load(make_context(FLOATS + parameter("isolation", "jail")))


def test_close_forgets_the_module_even_when_the_model_raises(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, "class Model:\n  def infer(self, i): ...\n  def close(self): exit(2)")
    executable = load(make_context(FLOATS))
    with pytest.raises(ModelFailed, match=r"close raised SystemExit: 2 \(model.py:3\)"):
        executable.close()


@pytest.mark.parametrize(
    ("data_type", "returned", "expected"),
    [
        ("FP32", "[[1, 2.5]]", np.array([[1, 2.5]], np.float32)),
        ("FP32", "(1, 2)", np.array([1, 2], np.float32)),
        ("FP32", "7", np.array(7, np.float32)),
        ("FP32", "np.arange(6, dtype='f4').reshape(2, 3).T", np.array([[0, 3], [1, 4], [2, 5]], np.float32)),
        ("BF16", "[1.5]", np.array([1.5], ml_dtypes.bfloat16)),
        ("FP16", "np.ones(2, np.float16)", np.ones(2, np.float16)),
        ("UINT8", "[255]", np.array([255], np.uint8)),
        ("BOOL", "[True, False]", np.array([True, False])),
        ("STRING", "['é', b'\\xff']", np.array(["é".encode(), b"\xff"], np.object_)),
        ("STRING", "'one'", np.array(b"one", np.object_)),
        ("STRING", "np.array([['a', 'bc']])", np.array([[b"a", b"bc"]], np.object_)),
        ("STRING", "np.array([b'a'], object)", np.array([b"a"], np.object_)),
    ],
)
def test_results_take_the_declared_type(
    tmp_path: Path, make_context: MakeContext, data_type: str, returned: str, expected: np.ndarray[Any, Any]
) -> None:
    write(tmp_path, f"import numpy as np\nclass Model:\n  def infer(self, inputs): return {{'y': {returned}}}")
    executable = load(make_context(tensors("input", x="FP32") + tensors("output", y=data_type)))
    y = executable.execute(ONE, None)["y"]
    assert y.dtype == expected.dtype
    assert y.shape == expected.shape
    assert y.tolist() == expected.tolist()
    assert y.flags.c_contiguous
    executable.close()


@pytest.mark.parametrize(
    ("data_type", "returned", "message"),
    [
        ("UINT8", "[256]", "output 'y': expected UINT8, given Python integer 256 out of bounds"),
        ("INT32", "[1.5]", "output 'y': expected INT32 (int32), given FP64 (float64)"),
        ("STRING", "[1]", "output 'y' element 0: expected bytes or str, given a int"),
        ("STRING", "np.zeros(2)", "output 'y': expected BYTES (object), given FP64 (float64)"),
        ("STRING", "None", "output 'y' element 0: expected bytes or str, given None"),
    ],
)
def test_results_that_cannot_take_it_are_refused(
    tmp_path: Path, make_context: MakeContext, data_type: str, returned: str, message: str
) -> None:
    write(tmp_path, f"import numpy as np\nclass Model:\n  def infer(self, inputs): return {{'y': {returned}}}")
    executable = load(make_context(tensors("input", x="FP32") + tensors("output", y=data_type)))
    with pytest.raises(ModelFailed) as failed:
        executable.execute(ONE, None)
    assert message in str(failed.value)
    executable.close()


def test_only_wanted_outputs_are_needed_and_given(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, "class Model:\n  def infer(self, inputs): return {'y': inputs['x'], 'z': [1]}")
    executable = load(make_context(FLOATS + tensors("output", z="INT64", unused="INT64")))
    assert list(executable.execute(ONE, ("z",))) == ["z"]
    with pytest.raises(ModelFailed, match="output 'unused'"):
        executable.execute(ONE, None)
    executable.close()


def test_a_decoupled_generator(tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        """
        class Model:
            closed = 0

            def infer(self, inputs, parameters):
                try:
                    for step in range(parameters["steps"]):
                        if step == 3:
                            raise ValueError("three is too many")
                        yield {"y": inputs["x"] * step}
                finally:
                    Model.closed += 1
        """,
    )
    executable = load(make_context(DECOUPLED))
    assert executable.decoupled
    assert not executable.is_async
    model: Any = executable._model._model  # type: ignore[attr-defined]
    with pytest.raises(Unsupported):
        executable.execute(ONE, None)
    responses = executable.stream(ONE, {"steps": 2})
    assert isinstance(responses, Iterator)
    assert [response["y"][0, 1] for response in responses] == [0.0, 2.0]
    assert list(executable.stream(ONE, {"steps": 0})) == []  # type: ignore[arg-type]
    failing = executable.stream(ONE, {"steps": 5})
    assert isinstance(failing, Iterator)
    assert [next(failing)["y"][0, 0] for _ in range(3)] == [0.0, 1.0, 2.0]
    with pytest.raises(ModelFailed, match=r"infer raised ValueError: three is too many \(model.py:9\)"):
        next(failing)
    abandoned = executable.stream(ONE, {"steps": 2})
    assert isinstance(abandoned, Iterator)
    next(abandoned)
    assert model.closed == 3
    abandoned.close()  # type: ignore[attr-defined]
    assert model.closed == 4
    executable.close()


def test_a_decoupled_async_generator(tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        """
        import asyncio

        class Model:
            async def infer(self, inputs):
                for step in range(3):
                    await asyncio.sleep(0)
                    yield {"y": inputs["x"] * step}
                yield {"wrong": 1}
        """,
    )
    executable = load(make_context(DECOUPLED))
    assert executable.is_async

    async def collect() -> list[float]:
        responses = executable.stream(ONE, {})
        assert isinstance(responses, AsyncIterator)
        seen = [float((await anext(responses))["y"][0, 0]) for _ in range(3)]
        with pytest.raises(ModelFailed, match="output 'wrong': expected one of 'y'"):
            await anext(responses)
        return seen

    assert asyncio.run(collect()) == [0.0, 1.0, 2.0]
    executable.close()


def test_a_decoupled_model_that_returns_a_dict_is_told(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, "class Model:\n  def infer(self, inputs): return {'y': 1}")
    executable = load(make_context(DECOUPLED))
    with pytest.raises(ModelFailed, match="expected a generator, given a dict"):
        executable.stream(ONE, {})
    executable.close()
