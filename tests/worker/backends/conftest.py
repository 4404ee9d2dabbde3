"""A model's directory and configuration, as the lifecycle hands them to a backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from isochrone.models.signature import signature_of
from isochrone.worker.backends.interface import LoadContext

MakeContext = Callable[..., LoadContext]


@pytest.fixture
def make_context(tmp_path: Path) -> MakeContext:
    """A context for the model 'm' in ``tmp_path``; ``config`` is the text of a config.pbtxt."""

    def make(config: str, *, version: str = "1", directory: Path = tmp_path, cpus: tuple[int, ...] = ()) -> LoadContext:
        message = model_config_pb2.ModelConfig(name="m")
        text_format.Parse(config, message)
        return LoadContext(
            model_name="m",
            model_version=version,
            directory=directory,
            config=message,
            signature=signature_of(message),
            instance=0,
            cpus=cpus,
            parameters={key: value.string_value for key, value in message.parameters.items()},
        )

    return make
