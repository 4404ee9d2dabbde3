"""``isochrone.serve``: from functions and classes to a running worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict

from isochrone.errors import ConfigError
from isochrone.in_process.given_code import GivenCode, check_name, read_code
from isochrone.in_process.learning import learn_outputs
from isochrone.in_process.options import ModelOptions, options_of
from isochrone.in_process.repository import VERSION, ModelSettings, configuration, describe
from isochrone.in_process.server import Server
from isochrone.in_process.tensor_types import (
    TensorType,
    check_example,
    example_arrays,
    parse_types,
    type_of,
)
from isochrone.in_process.worker_thread import WorkerThread
from isochrone.models.repository.description import ModelDescription
from isochrone.worker.backends.python.model import ModelContext
from isochrone.worker.server.settings import ServeSettings

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors

_WHERE = "isochrone.serve"


def serve(
    model: Any,
    *,
    name: str | None = None,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    example: Mapping[str, Any] | None = None,
    batch: int | None = None,
    deadline_ms: float | None = None,
    instances: int | None = None,
    parameters: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
    http_port: int = 8000,
    grpc_port: int = 8001,
    metrics_port: int = 8002,
    exit_timeout: float = 30.0,
    block: bool = True,
) -> Server:
    """Serve a function, a class, an object, or a list of them, from this process.

    ::

        def double(x):
            return {"y": x * 2}

        isochrone.serve(double, inputs={"x": "FP32[3]"})

    A function gets each input as the keyword argument of its name, and returns a dict of output name to array. A class
    has ``infer(self, inputs)``, which gets and returns such a dict, and perhaps ``load(self, context)`` and
    ``close(self)``. A generator is a decoupled model: each dict that it yields is one response.

    Args:
        model: The model, or a list of models; in a list, each has its options from ``@isochrone.model``.
        name: The model's name; by default that of the function or class.
        inputs: Datatype and sizes of each input, as in ``{"x": "FP32[3]"}``; -1 is any size.
        outputs: The same of the outputs. By default the model is called once to learn them.
        example: An array for each input. Without ``inputs``, it states them. The model is called with it, and not with
            zeros, to learn the outputs and to warm up.
        batch: Largest number of rows that run together. Above 0, arrays have a first axis of rows, which the types
            above leave out, and the worker joins requests that arrive together. 0 (default): no such axis.
        deadline_ms: Deadline of requests that state none. Default: none.
        instances: Copies of the model that run at the same time, each on its own thread. Default: 1.
        parameters: The ``parameters`` of the model's configuration, as strings; ``load`` gets them in its context.
        host: Address to listen on; "0.0.0.0": reachable from other machines.
        http_port: Port for HTTP; 0 chooses a free one. Each port speaks HTTP and gRPC.
        grpc_port: Port for gRPC.
        metrics_port: Port for Prometheus.
        exit_timeout: Seconds for the requests in flight when the server stops.
        block: Serve until Ctrl-C (SIGINT, SIGTERM), then return. False: return a running ``Server`` at once.

    Raises:
        ConfigError: an argument is wrong, or a port is in use; the message names it.
        ModelFailed: the model raised while it was loaded or warmed up.
    """
    settings = ServeSettings(
        repositories=(),
        host=host,
        http_port=_port(http_port, "http_port"),
        grpc_port=_port(grpc_port, "grpc_port"),
        metrics_port=_port(metrics_port, "metrics_port"),
        exit_timeout=exit_timeout,
    )
    given = ModelOptions(name, inputs, outputs, example, batch, deadline_ms, instances, parameters)
    descriptions = _describe_all(model, given)
    server = Server(host, tuple(each.name for each in descriptions))

    def ready(ports: Mapping[str, int]) -> None:
        server.ready(ports)
        if block:
            names = ", ".join(server.models)
            urls = f"{server.http_url} and {server.grpc_url}, metrics at {server.metrics_url}"
            print(f"isochrone: serving {names} at {urls} (Ctrl-C stops)", flush=True)

    thread = WorkerThread(settings, descriptions, ready)
    server.attach(thread)
    try:
        _run(thread, block)
    finally:
        if not server.is_running:
            _discard(descriptions)
    if block:
        print("isochrone: stopped", flush=True)
    return server


def _run(thread: WorkerThread, block: bool) -> None:
    is_main = threading.current_thread() is threading.main_thread()
    if not block:
        thread.start()
    elif is_main and not _runs_a_loop():
        thread.run_here()
    else:
        thread.run(on_signals=is_main)


def _discard(descriptions: Sequence[ModelDescription]) -> None:
    """Closes the objects that were loaded to learn their outputs and are not served."""
    for each in descriptions:
        if each.model_object is not None:
            each.model_object.make.discard()  # type: ignore[attr-defined]


def _runs_a_loop() -> bool:
    """Whether this thread runs an event loop, as that of a notebook's cell does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _port(value: object, key: str) -> int:
    if type(value) is not int or not 0 <= value <= 65535:
        raise ConfigError(_WHERE, key, "a port from 0 to 65535", repr(value))
    return value


def _describe_all(model: Any, given: ModelOptions) -> list[ModelDescription]:
    if not isinstance(model, Sequence):
        return [_describe(model, given)]
    if not model:
        raise ConfigError(_WHERE, "model", "at least one model", "an empty list")
    if given.given():
        expected = "none for a list of models: state them with @isochrone.model on each"
        raise ConfigError(_WHERE, given.given()[0], expected, repr(getattr(given, given.given()[0])))
    named: dict[str, Any] = {}
    for each in model:
        own = check_name(options_of(each).name or read_code(each).name)
        if own in named:
            raise ConfigError(_WHERE, "name", "a name of its own for each model", f"two models named '{own}'")
        named[own] = each
    described: list[ModelDescription] = []
    try:
        described.extend(_describe(each, given) for each in model)
    except BaseException:
        _discard(described)
        raise
    return described


def _describe(subject: Any, given: ModelOptions) -> ModelDescription:
    code = read_code(subject)
    options = given.over(options_of(subject))
    name = options.name if options.name is not None else code.name
    if options.name is None and name.startswith("<"):
        raise ConfigError(_WHERE, "name", "a name, since the function has none", name)
    check_name(name)
    where = f"{_WHERE}({name})"
    options.check(where)
    batch, instances = options.batch or 0, options.instances or 1
    if code.decoupled and batch:
        raise ConfigError(where, "batch", "0, since a generator answers one request at a time", str(batch))
    if code.shared and instances > 1:
        expected = "1 for an object; give its class, and each instance gets an object of its own"
        raise ConfigError(where, "instances", expected, str(instances))
    types, example = _inputs(options, where)
    code.check_inputs(tuple(types), where, "inputs" if options.inputs is not None else "example")
    declared = parse_types(options.outputs, where, "outputs") if options.outputs is not None else {}
    settings = ModelSettings(
        name, types, declared, batch, instances, options.deadline_ms, code.decoupled, options.parameters or {}
    )
    make = _Make(code)
    if not declared:
        settings = _learned(settings, make, example, code.directory, where)
    try:
        return describe(settings, make, code.directory, example, not declared, where)
    except BaseException:
        make.discard()
        raise


def _inputs(options: ModelOptions, where: str) -> tuple[dict[str, TensorType], Tensors | None]:
    example = None if options.example is None else example_arrays(options.example, where)
    if options.inputs is not None:
        types = parse_types(options.inputs, where, "inputs")
        if example is not None:
            check_example(types, example, where)
        return types, example
    if example is None:
        expected = 'inputs={"x": "FP32[3]"} or example={"x": an array}'
        raise ConfigError(where, "inputs", expected, "neither")
    return {name: type_of(array) for name, array in example.items()}, example


def _learned(
    settings: ModelSettings, make: _Make, example: Tensors | None, directory: Path, where: str
) -> ModelSettings:
    """The settings with the outputs that a call of the model gave. The object of that call becomes instance 0."""
    context = ModelContext(
        model_name=settings.name,
        model_version=str(VERSION),
        directory=directory,
        config=MessageToDict(configuration(settings), preserving_proto_field_name=True),
        parameters=dict(settings.parameters),
        instance=0,
    )
    loaded = make.load_early(context)
    try:
        outputs = learn_outputs(loaded.infer, settings.inputs, example, settings.batch > 0, where)
    except BaseException:
        make.discard()
        raise
    return ModelSettings(
        settings.name,
        settings.inputs,
        outputs,
        settings.batch,
        settings.instances,
        settings.deadline_ms,
        settings.decoupled,
        settings.parameters,
    )


class _Make:
    """Makes the loaded object of an instance. One that was loaded to learn its outputs is used first, not twice."""

    def __init__(self, code: GivenCode) -> None:
        self._code = code
        self._early: list[Any] = []

    def load_early(self, context: ModelContext) -> Any:
        self._early.append(self._code.load(context))
        return self._early[0]

    def discard(self) -> None:
        """Closes an object that will not be served."""
        for each in self._early:
            if hasattr(each, "close"):
                each.close()
        self._early.clear()

    def __call__(self, context: ModelContext) -> Any:
        return self._early.pop() if self._early else self._code.load(context)
