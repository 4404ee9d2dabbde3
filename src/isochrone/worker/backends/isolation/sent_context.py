"""A ``LoadContext`` on its way to the process of an isolated model.

For backends whose ``load`` runs there as it does in the server. The process has no server to call and no objects of
the server's process.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from tritonclient.grpc import model_config_pb2

from isochrone.models.signature import signature_of
from isochrone.worker.backends.interface import LoadContext

#: Parameters that the server's side carries out.
_OF_THE_SERVER = frozenset(("isolation", "execution_timeout_ms"))


class SentContext(msgspec.Struct):
    model_name: str
    model_version: str
    directory: str
    #: A serialised ``ModelConfig``.
    config: bytes
    instance: int
    cpus: list[int]
    parameters: dict[str, str]
    config_source: str
    gpu: int | None
    gpu_share: float


def sent_context(context: LoadContext) -> SentContext:
    return SentContext(
        model_name=context.model_name,
        model_version=context.model_version,
        directory=str(context.directory),
        config=context.config.SerializeToString(),
        instance=context.instance,
        cpus=list(context.cpus),
        parameters={key: value for key, value in context.parameters.items() if key.lower() not in _OF_THE_SERVER},
        config_source=context.config_source,
        gpu=context.gpu,
        gpu_share=context.gpu_share,
    )


def received_context(model: msgspec.Raw) -> LoadContext:
    return context_of(msgspec.msgpack.decode(model, type=SentContext))


def context_of(sent: SentContext) -> LoadContext:
    config = model_config_pb2.ModelConfig.FromString(sent.config)
    return LoadContext(
        model_name=sent.model_name,
        model_version=sent.model_version,
        directory=Path(sent.directory),
        config=config,
        signature=signature_of(config),
        instance=sent.instance,
        cpus=tuple(sent.cpus),
        parameters=sent.parameters,
        config_source=sent.config_source,
        gpu=sent.gpu,
        gpu_share=sent.gpu_share,
    )
