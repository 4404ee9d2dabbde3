"""What a picker makes of methods and paths, and what it keeps of them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from isochrone.errors import Unsupported
from isochrone.gateway.picker import replies
from isochrone.gateway.picker.calls import find_call
from isochrone.gateway.picker.received import Part

_PADDING = b"x" * 64_000


def _of_path(number: int) -> None:
    find_call(b"POST", b"/v2/models/m/infer?%d%b" % (number, _PADDING), False)


def _of_method(number: int) -> None:
    find_call(b"A%d%b" % (number, _PADDING), b"/v2/models/m", False)


def _of_header(number: int) -> None:
    replies.set_header_again(b":path", b"/%d%b" % (number, _PADDING))


def _of_decision(number: int) -> None:
    mutation = replies.set_header(b":path", b"/%d%b" % (number, _PADDING))
    replies.decision_again(Part.REQUEST_HEADERS, b"10.0.0.1:8000", (mutation,))


@pytest.mark.parametrize("make", [_of_path, _of_method, _of_header, _of_decision])
def test_long_paths_of_clients_are_not_kept(make: Callable[[int], None]) -> None:
    make(0)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1, 101):
            make(number)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Had all of them been kept, it would be over 6 MB.
    assert after - before < 1_000_000


@pytest.mark.parametrize("size", [1, 1000, 5000])
def test_what_is_remembered_and_what_is_not_are_the_same(size: int) -> None:
    tail = f"/infer?{'q' * size}"
    call = find_call(b"POST", f"/v2/models/a%20b/versions/7{tail}".encode(), False)
    assert (call.model, call.version, call.tail) == ("a b", "7", tail)
    value = b"v" * size
    assert replies.set_header_again(b"a", value) == replies.set_header(b"a", value)
    mutations = (replies.set_header(b"a", value),)
    given = Part.REQUEST_HEADERS, b"10.0.0.1:8000", mutations
    assert replies.decision_again(*given) == replies.decision(*given)


@pytest.mark.parametrize("path", [b"/v2/models/m/stats", b"/v2/models/m/versions/1/stats", b"/v2/models/stats"])
def test_statistics_of_one_worker_are_not_shown_for_all(path: bytes) -> None:
    with pytest.raises(Unsupported, match="call a gateway, or each worker"):
        find_call(b"GET", path, False)
