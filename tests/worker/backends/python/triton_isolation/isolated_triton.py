"""Triton models in processes of their own, for tests: their configuration, their requests, and what is around them."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from google.protobuf import text_format
from started_executables import started
from tritonclient.grpc import model_config_pb2

from isochrone.clock import NEVER
from isochrone.errors import IsochroneError
from isochrone.models.signature import signature_of
from isochrone.protocol.messages import InferRequest, Plan
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.python.backend import load
from isochrone.worker.backends.python.triton.isolation.executable import IsolatedTritonExecutable
from isochrone.worker.backends.python.triton.responses import InferenceResponse
from isochrone.worker.backends.python.triton.server import Cancel, Deliver, ModelCall

Array = np.ndarray[Any, np.dtype[Any]]

CONFIG = """
name: "m"
backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
parameters { key: "isolation" value { string_value: "process" } }
"""
#: Patched to less in tests of processes that live on until they are killed.
END_MILLISECONDS = "isochrone.worker.backends.processes.child._END_MILLISECONDS"
DECOUPLED = "model_transaction_policy { decoupled: true }"

#: Prepended to every model.
_IMPORTS = """
import asyncio, ctypes, json, os, pathlib, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

def x_of(request):
    return pb_utils.get_input_tensor_by_name(request, "x").as_numpy()

def response(array, **keywords):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.asarray(array, np.float32))], **keywords)

def call(**keywords):
    x = pb_utils.Tensor("x", np.array([[1.0]], np.float32))
    given = {"model_name": "other", "requested_output_names": ["y"], "inputs": [x], **keywords}
    return pb_utils.InferenceRequest(**given)
"""


class Server:
    """Stands in for the worker: it records what models ask of it, and a test answers their calls."""

    may_block = True

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[ModelCall, Deliver]] = SimpleQueue()
        self.cancelled: SimpleQueue[str] = SimpleQueue()
        self.lines: list[tuple[str, str]] = []
        self.controlled: list[tuple[Any, ...]] = []
        self.refusal = ""

    def call(self, call: ModelCall, deliver: Deliver) -> Cancel:
        self.calls.put((call, deliver))
        return lambda: self.cancelled.put(call.request_id)

    def next_call(self) -> tuple[ModelCall, Deliver]:
        return self.calls.get(timeout=60)

    def is_model_ready(self, name: str, version: str) -> bool:
        return (name, version) == ("other", "3")

    def load_model(self, name: str, config: str, files: Mapping[str, bytes] | None) -> None:
        if self.refusal:
            raise RuntimeError(self.refusal)
        self.controlled.append((name, config, files))

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        self.controlled.append((name, unload_dependents))

    def log(self, level: str, message: str) -> None:
        self.lines.append((level, message))


class Outlet:
    """Where the answers to one request go."""

    def __init__(self) -> None:
        self.answers: SimpleQueue[tuple[Any, bool]] = SimpleQueue()
        self.holds_back = False
        self.held_back: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.cancelled = threading.Event()

    def send(self, answer: Any, is_last: bool) -> None:
        self.answers.put((answer, is_last))

    def post(self, answer: Any, taken: Callable[[], None]) -> None:
        self.answers.put((answer, False))
        if self.holds_back:
            self.held_back.put(taken)
        else:
            taken()

    def is_cancelled(self) -> bool:
        return self.cancelled.is_set()

    def next(self) -> tuple[Any, bool]:
        answer, is_last = self.answers.get(timeout=60)
        if isinstance(answer, dict):
            return answer["y"].ravel().tolist(), is_last
        return answer, is_last


class Outlets(dict[InferRequest, Outlet]):
    def __missing__(self, request: InferRequest) -> Outlet:
        outlet = self[request] = Outlet()
        return outlet

    def __call__(self, request: InferRequest) -> Outlet:
        return self[request]


def context(directory: Path, source: str, config: str = "", server: Any = None, **parameters: str) -> LoadContext:
    (directory / "model.py").write_text(_IMPORTS + textwrap.dedent(source))
    message = model_config_pb2.ModelConfig()
    text_format.Parse(CONFIG + config, message)
    given = {"isolation": "process", **parameters}
    return LoadContext("m", "1", directory, message, signature_of(message), 0, (), given, server)


def start(
    directory: Path, source: str, config: str = "", server: Any = None, **parameters: str
) -> IsolatedTritonExecutable:
    executable = load(context(directory, source, config, server, **parameters))
    assert isinstance(executable, IsolatedTritonExecutable)
    executable.outlet_of = Outlets()
    return started(executable)


def write_whole(path: Path, text: str) -> None:
    """Writes a file that a model waits for: it is there with its text or not at all."""
    beside = path.with_name(f"{path.name}.beside")
    beside.write_text(text)
    beside.rename(path)


def request(
    *values: float,
    array: Array | None = None,
    outputs: tuple[str, ...] | None = None,
    request_id: str = "",
    deadline: int = NEVER,
    chain: tuple[Any, ...] = (),
    **plan: Any,
) -> InferRequest:
    x = np.array([values], np.float32) if array is None else array
    described = Plan("m", "1", (("x", "FP32", x.shape),), outputs, plan.pop("parameters", {}), **plan)
    made = _Called if chain else InferRequest
    asked = made(described, request_id, {"x": x}, 0, deadline)
    if isinstance(asked, _Called):
        asked.chain = chain
    return asked


class _Called(InferRequest):
    chain: tuple[Any, ...] = ()

    @property
    def call_chain(self) -> tuple[Any, ...]:
        return self.chain


def outlet(executable: IsolatedTritonExecutable, asked: InferRequest) -> Outlet:
    made = executable.outlet_of(asked)
    assert isinstance(made, Outlet)
    return made


def run(executable: IsolatedTritonExecutable, *requests: InferRequest) -> list[Any]:
    """The answers; outputs as lists of numbers."""
    return [_plain(answer) for answer in executable.execute_requests(requests)]


def _plain(answer: Any) -> Any:
    return answer["y"].ravel().tolist() if isinstance(answer, dict) else answer


def failure(executable: IsolatedTritonExecutable, asked: InferRequest) -> IsochroneError:
    (answer,) = executable.execute_requests([asked])
    assert isinstance(answer, IsochroneError)
    return answer


def answer_with(*values: float, error: Any = None, parameters: str = "{}") -> InferenceResponse:
    """A response of a called model."""
    from isochrone.worker.backends.python.triton.tensors import Tensor

    tensors = [Tensor("y", np.array([values], np.float32))] if values else []
    return InferenceResponse.received(tensors, error, parameters)
