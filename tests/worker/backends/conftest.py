"""A model's directory and configuration, as the lifecycle hands them to a backend, and a look for what it leaves."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest
from google.protobuf import text_format
from load_contexts import MakeContext
from started_executables import close_left_open, forget_all
from tritonclient.grpc import model_config_pb2

from isochrone.models.signature import signature_of
from isochrone.worker.backends.interface import LoadContext

_HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_HAS_FAILED] = report.failed
    return report


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
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing of an isolated model may be left: no process, thread, descriptor or shared memory.

    A test that fails has no chance to close its models: they are closed for it (``started_executables``).
    """
    me = psutil.Process()
    threads, descriptors = threading.enumerate(), me.num_fds()
    children = {child.pid for child in me.children(recursive=True)}
    forget_all()
    yield
    if request.node.stash.get(_HAS_FAILED, True):
        close_left_open(threads)
    assert {child.pid for child in me.children(recursive=True)} <= children
    assert threading.active_count() == len(threads)
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
