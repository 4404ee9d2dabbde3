"""How the process of an isolated python model loads it: ``isolation.child_main`` imports this module.

It must stay light to import (no protobuf, no gRPC): every such process waits for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from isochrone.worker.backends.processes.child_side import import_from
from isochrone.worker.backends.python.executable import executable_of
from isochrone.worker.backends.python.model import ModelContext, UserModel

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import Executable


class SentModel(msgspec.Struct):
    """A model, as the server sends it to the process."""

    model_name: str
    model_version: str
    directory: str
    config: dict[str, Any]
    parameters: dict[str, str]
    instance: int
    filename: str
    outputs: dict[str, str]
    decoupled: bool


def sent_model(context: ModelContext, filename: str, outputs: dict[str, str], decoupled: bool) -> SentModel:
    return SentModel(
        model_name=context.model_name,
        model_version=context.model_version,
        directory=str(context.directory),
        config=dict(context.config),
        parameters=dict(context.parameters),
        instance=context.instance,
        filename=filename,
        outputs=outputs,
        decoupled=decoupled,
    )


def load_in_child(model: msgspec.Raw) -> Executable:
    sent = msgspec.msgpack.decode(model, type=SentModel)
    import_from(sent.directory)
    context = ModelContext(
        model_name=sent.model_name,
        model_version=sent.model_version,
        directory=Path(sent.directory),
        config=sent.config,
        parameters=sent.parameters,
        instance=sent.instance,
    )
    return executable_of(UserModel(context, sent.filename, sent.outputs, sent.decoupled), sent.decoupled)
