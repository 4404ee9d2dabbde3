"""The shelf of streams: no two instances share one, and a closed instance hands its own on."""

from __future__ import annotations

from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest

from isochrone.errors import Unavailable
from isochrone.worker.backends.devices.streams import StreamShelf


def test_a_closed_instance_hands_its_stream_on() -> None:
    shelf, handles = StreamShelf(), iter(range(10))

    def make() -> Any:
        return SimpleNamespace(cuda_stream=next(handles))

    first, second = (shelf.take("cuda:0", make) for _ in range(2))
    shelf.give("cuda:0", first)
    assert shelf.take("cuda:1", make).cuda_stream == 2
    assert shelf.take("cuda:0", make) is first
    assert (first.cuda_stream, second.cuda_stream) == (0, 1)


def test_no_two_instances_have_the_same_stream() -> None:
    """torch hands out its few streams in turn, whoever has them."""
    shelf, handles = StreamShelf(), cycle(range(4))

    def make() -> Any:
        return SimpleNamespace(cuda_stream=next(handles))

    taken = [shelf.take("cuda:0", make).cuda_stream for _ in range(4)]
    assert sorted(taken) == [0, 1, 2, 3]
    with pytest.raises(Unavailable, match="instances use all 4 streams"):
        shelf.take("cuda:0", make)


def test_a_stream_that_nobody_had_is_not_taken_back() -> None:
    with pytest.raises(ValueError, match="cuda:0: a stream was given back that nobody had taken"):
        StreamShelf().give("cuda:0", SimpleNamespace(cuda_stream=1))
