"""Frames over a link: whole and in order, however they are cut, or a broken link."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.worker.backends.processes.frames import FrameReader, LinkBroken, Outbox, frame
from isochrone.worker.backends.processes.places import BadPlace, Packing, Place, read_places

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def packed(**arrays: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> tuple[list[Place], Packing]:
    packing = Packing()
    return packing.add(dict(arrays)), packing


@given(
    sizes=st.lists(st.tuples(st.integers(0, 300), st.sampled_from((0, 1, 7, 100, 9_000, 40_000))), max_size=5),
    cuts=st.lists(st.integers(1, 50_000), min_size=1, max_size=5),
)
def test_frames_arrive_whole_and_aligned(sizes: list[tuple[int, int]], cuts: list[int]) -> None:
    left, right = socket.socketpair()
    with left, right:
        sent = []
        data = b""
        for number, (length, elements) in enumerate(sizes):
            places, packing = packed(x=np.full(elements, number, np.float32))
            sent.append((bytes([number]) * length, places))
            data += b"".join(bytes(part) for part in frame(sent[-1][0], packing))
        right.setblocking(False)
        reader = FrameReader(right)
        received = []
        position = 0
        # Of a long row of frames, at most some hundred pieces.
        least = len(data) // 200
        while position < len(data) or not received or received[-1] is not None:
            if position < len(data):
                cut = max(cuts[len(received) % len(cuts)], least)
                left.sendall(data[position : position + cut])
                position += cut
            found = reader.receive(socket.MSG_DONTWAIT)
            received.append(None if found is None else (bytes(found[0]), found[1]))
    frames = [each for each in received if each is not None]
    assert [body for body, _ in frames] == [body for body, _ in sent]
    for number, (_, payload) in enumerate(frames):
        x = read_places(payload, sent[number][1], copy=False)["x"]
        assert (x == number).all()
        assert x.flags.aligned
        assert x.flags.writeable


@pytest.mark.parametrize("sent", [b"", b"\x08\0", struct.pack("<IQ", 3, 0) + b"ab", struct.pack("<IQ", 0, 1 << 62)])
def test_anything_else_is_a_broken_link(pair: Pair, sent: bytes) -> None:
    left, right = pair
    left.sendall(sent)
    left.close()
    with pytest.raises(LinkBroken):
        FrameReader(right).receive()


def test_a_place_outside_the_payload_is_refused() -> None:
    with pytest.raises(BadPlace):
        read_places(np.zeros(8, np.uint8), [Place("x", "FP32", (4,), 0, 16)], copy=False)


def test_threads_send_whole_frames(pair: Pair) -> None:
    left, right = pair
    outbox, reader = Outbox(left), FrameReader(right)

    def post(number: int) -> None:
        for _ in range(50):
            _, packing = packed(x=np.full(20_000, number, np.float32))
            outbox.post(frame(bytes([number]), packing))

    threads = [threading.Thread(target=post, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        found = reader.receive()
        assert found is not None
        assert (found[1].view(np.float32) == found[0][0]).all()
    for thread in threads:
        thread.join()


def test_a_link_that_takes_no_more_keeps_nobody_waiting(pair: Pair) -> None:
    left, right = pair
    stuck: list[bool] = []
    outbox, reader = Outbox(left, lambda: stuck.append(True)), FrameReader(right)
    for number in range(5):
        _, packing = packed(x=np.full(200_000, number, np.float32))
        outbox.post(frame(bytes([number]), packing))
    assert stuck == [True]
    assert outbox.is_stuck
    bodies = []
    while len(bodies) < 5:
        found = reader.receive(socket.MSG_DONTWAIT)
        if found is None:
            outbox.flush()
        else:
            bodies.append(found[0][0])
            assert (found[1].view(np.float32) == found[0][0]).all()
    assert bodies == [0, 1, 2, 3, 4]
    assert not outbox.is_stuck


def test_sending_to_nobody_is_dropped(pair: Pair) -> None:
    left, right = pair
    right.close()
    outbox = Outbox(left)
    outbox.post(frame(b"x"))
    outbox.post(frame(b"y"))
    assert not outbox._frames
