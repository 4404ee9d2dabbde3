"""Models written in Python: a ``model.py`` with a plain class named ``Model``.

    class Model:
        def load(self, context): ...        # optional; context is a model.ModelContext
        def infer(self, inputs):            # dict of name to array, whole batches
            return {"y": inputs["x"] * 2}
        def close(self): ...                # optional

With ``model_transaction_policy { decoupled: true }``, ``infer(self, inputs)`` or ``infer(self, inputs, parameters)`` is
a generator or an async generator of such dicts. Inputs must not be written to, and an array that was returned must not
be changed afterwards: the server may still be sending it.

By default the model runs inside the server (``isolation: "thread"``): a call costs 0.6 µs beside the model's own time,
but a model that calls ``os._exit``, crashes or hangs harms the server. With
``parameters { key: "isolation" value { string_value: "process" } }`` it runs in a process of its own (``isolation``),
which costs two orders of magnitude more per call (150 µs; 320 µs with 1 MiB each way) and protects the server from all
three. With ``isochrone serve --sandbox`` every model has a process of its own, which is confined (``secure.sandbox``).
There, inputs are views of shared memory that are valid during the call, and a model that keeps one must copy it.
A call that exceeds ``execution_timeout_ms`` is ended by killing the process.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict

from isochrone.worker.backends import parameters
from isochrone.worker.backends.interface import Executable, LoadContext
from isochrone.worker.backends.isolation.executable import IsolatedExecutable
from isochrone.worker.backends.python.executable import executable_of
from isochrone.worker.backends.python.given import GivenModel
from isochrone.worker.backends.python.isolated import sent_model
from isochrone.worker.backends.python.model import ModelContext, UserModel
from isochrone.worker.backends.python.triton.arguments import is_triton_model
from isochrone.worker.backends.python.triton.arguments import model_context as triton_context
from isochrone.worker.backends.python.triton.executable import load as load_triton
from isochrone.worker.backends.python.triton.isolation.executable import load as load_isolated_triton
from isochrone.worker.backends.tensors.declared import declared_outputs

_LOADER = "isochrone.worker.backends.python.isolated"


def load(context: LoadContext) -> Executable:
    isolation = parameters.choice(context, "isolation", "thread", ("thread", "process"))
    if context.confinement is not None:
        isolation = "process"
    decoupled: bool = context.config.model_transaction_policy.decoupled
    filename: str = context.config.default_model_filename or "model.py"
    if is_triton_model(context.directory / filename):
        if isolation == "process":
            return load_isolated_triton(context, triton_context(context, filename))
        return load_triton(context, triton_context(context, filename))
    model_context = _model_context(context)
    if context.make_model is not None:
        if isolation == "process":
            parameters.reject(context, "isolation", "thread, since the model is an object of this process", isolation)
        given = GivenModel(model_context, context.make_model, declared_outputs(context))
        return executable_of(given, decoupled)
    if isolation == "process":
        sent = sent_model(model_context, filename, declared_outputs(context), decoupled)
        return IsolatedExecutable(context, _LOADER, sent, decoupled)
    return executable_of(UserModel(model_context, filename, declared_outputs(context), decoupled), decoupled)


def _model_context(context: LoadContext) -> ModelContext:
    config: dict[str, Any] = MessageToDict(context.config, preserving_proto_field_name=True)
    return ModelContext(
        model_name=context.model_name,
        model_version=context.model_version,
        directory=context.directory,
        config=config,
        parameters=dict(context.parameters),
        instance=context.instance,
    )
