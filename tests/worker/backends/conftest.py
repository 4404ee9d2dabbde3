"""A model's directory and configuration, as the lifecycle hands them to a backend."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from google.protobuf import text_format
from load_contexts import MakeContext
from tritonclient.grpc import model_config_pb2

from isochrone.models.signature import signature_of
from isochrone.worker.backends.interface import LoadContext


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


@pytest.fixture
def nothing_leaks() -> Iterator[None]:
    """Nothing of an isolated model may be left: no process, thread, descriptor or shared memory."""
    me = psutil.Process()
    threads, descriptors = threading.active_count(), me.num_fds()
    children = {child.pid for child in me.children(recursive=True)}
    yield
    assert {child.pid for child in me.children(recursive=True)} <= children
    assert threading.active_count() == threads
    assert me.num_fds() <= descriptors
    assert not [target for target in _mapped() if "isochrone-request" in target or "isochrone-response" in target]


def _mapped() -> list[str]:
    """Files that this process holds open."""
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            continue
    return targets
