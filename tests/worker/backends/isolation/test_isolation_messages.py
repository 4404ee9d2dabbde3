"""Messages between the server and an isolated model: whole, or a broken link."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from isochrone.worker.backends.isolation import messages
from isochrone.worker.backends.isolation.messages import Disconnected, Failed, Infer, Open, Result
from isochrone.worker.backends.processes.places import Place

Pair = tuple[socket.socket, socket.socket]
PLACES = [Place("x", "FP32", (1, 2), 64, 8)]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_questions_and_answers_arrive_as_they_were(pair: Pair) -> None:
    left, right = pair
    for question in (Infer(PLACES, 128, ["y"], 3), Open(PLACES, 128, {"a": True, "b": 1, "c": 0.5, "d": "e"})):
        messages.send(left, question)
        assert messages.receive_question(right) == question
    for answer in (Result(PLACES, 128), Failed("why" * 30_000, ["a", "b", "c", "d"])):
        messages.send(right, answer)
        assert messages.receive_answer(left) == answer


@pytest.mark.parametrize(
    "sent",
    [b"", b"\x08\0", b"\x08\0\0\0cut", b"\x03\0\0\0abc", b"\x01\0\0\0\xc1", b"\xff\xff\xff\xff", b"\0\0\0\0"],
)
def test_anything_else_is_a_broken_link(pair: Pair, sent: bytes) -> None:
    left, right = pair
    left.sendall(sent)
    left.close()
    with pytest.raises(Disconnected):
        messages.receive_answer(right)


def test_a_question_is_no_answer(pair: Pair) -> None:
    left, right = pair
    messages.send(left, messages.Stop())
    with pytest.raises(Disconnected, match="not a message"):
        messages.receive_answer(right)


def test_sending_to_nobody_is_a_broken_link(pair: Pair) -> None:
    left, right = pair
    right.close()
    with pytest.raises(Disconnected):
        messages.send(left, messages.Close())
