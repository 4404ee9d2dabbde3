"""Nothing of an isolated model may be left: no process, thread, descriptor or shared memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import psutil
import pytest


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
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
