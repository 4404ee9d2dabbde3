"""``pb_utils.InferenceResponse``, its sender's rules, and the iterator over a called stream."""

from __future__ import annotations

import gc
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import ModelFailed
from isochrone.worker.backends.python.triton.failures import TritonError, TritonModelException
from isochrone.worker.backends.python.triton.responses import (
    COMPLETE_FINAL,
    InferenceResponse,
    InferenceResponseSender,
    ResponseIterator,
    compact_json,
)
from isochrone.worker.backends.python.triton.tensors import Tensor


class Outlet:
    """Keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, response: Any, is_last: bool) -> None:
        self.sent.append((response, is_last))

    def is_cancelled(self) -> bool:
        return len(self.sent) > 1

    def abandoned(self, *, had_sender: bool) -> None:
        self.sent.append("abandoned")

    def fail(self, error: Any) -> None:
        self.sent.append(error)


def test_what_a_response_holds() -> None:
    response = InferenceResponse([Tensor("A", np.zeros(1))], parameters={"a": 1, "b": "c", "d": True})
    assert not response.has_error()
    assert response.error() is None
    assert json.loads(response.parameters()) == {"a": 1, "b": "c", "d": True}
    failed = InferenceResponse(error=TritonError("no", TritonError.NOT_FOUND))
    assert failed.has_error()
    assert failed.output_tensors() == []
    received = InferenceResponse.received([], None, '{"x":1}')
    assert received.parameters() == '{"x":1}'


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"output_tensors": [None]}, TritonModelException, "should not be empty"),
        ({"output_tensors": [5]}, TypeError, "expected Tensor objects, given a int"),
        ({"error": "text"}, TypeError, "expected a TritonError, given a str"),
        ({"parameters": {1: "a"}}, TritonModelException, "keys to have type str"),
        ({"parameters": {"a": 1.5}}, TritonModelException, "type bool/int/str, found type <class 'float'>"),
        ({"parameters": {"a": None}}, TritonModelException, "found type <class 'NoneType'>"),
    ],
)
def test_what_it_cannot_hold(arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        InferenceResponse(**arguments)


def test_json_as_the_server_writes_it() -> None:
    assert compact_json({}) == "{}"
    assert compact_json({"ä": 'a"b', "n": 1, "t": True}) == '{"ä":"a\\"b","n":1,"t":true}'


_SENDS = st.lists(st.tuples(st.booleans(), st.sampled_from([0, COMPLETE_FINAL, 2])), max_size=6)


@given(st.booleans(), _SENDS)
def test_the_rules_of_sending(is_decoupled: bool, sends: list[tuple[bool, int]]) -> None:
    """Against the rules as Triton documents them, for every order of sends."""
    outlet = Outlet()
    sender = InferenceResponseSender(outlet, is_decoupled)
    taken: list[tuple[bool, bool]] = []
    for has_response, flags in sends:
        is_last = flags == COMPLETE_FINAL
        count, is_closed = len(taken), any(last for _, last in taken)
        allowed = (
            flags in (0, COMPLETE_FINAL)
            and (has_response or is_last)
            and (is_decoupled or not has_response or count == 0)
            and (is_decoupled or has_response or count > 0)
            and not is_closed
        )
        response = InferenceResponse() if has_response else None
        if allowed:
            sender.send(response, flags)
            taken.append((has_response, is_last))
        else:
            with pytest.raises(TritonModelException):
                sender.send(response, flags)
    assert [(response is not None, is_last) for response, is_last in outlet.sent] == taken


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_sender_that_is_let_go(is_closed: bool) -> None:
    outlet = Outlet()
    sender = InferenceResponseSender(outlet, True)
    if is_closed:
        sender.send(None, COMPLETE_FINAL)
    del sender
    gc.collect()
    assert outlet.sent == ([(None, True)] if is_closed else ["abandoned"])


def test_a_failure_is_the_last_response_unless_there_was_one() -> None:
    error = ModelFailed("it failed")
    for is_decoupled, first, expected in [
        (True, None, [error]),
        (True, 0, [error]),
        (True, COMPLETE_FINAL, []),
        (False, 0, []),
    ]:
        outlet = Outlet()
        sender = InferenceResponseSender(outlet, is_decoupled)
        if first is not None:
            sender.send(InferenceResponse(), first)
            outlet.sent.clear()
        assert sender.fail(error) is bool(expected)
        assert outlet.sent == expected
        with pytest.raises(TritonModelException):
            sender.send(InferenceResponse())


@pytest.mark.parametrize("is_decoupled", [False, True])
@pytest.mark.parametrize("flags", [0, COMPLETE_FINAL])
def test_what_is_no_response_is_refused_and_the_sender_stays_open(is_decoupled: bool, flags: int) -> None:
    outlet = Outlet()
    sender = InferenceResponseSender(outlet, is_decoupled)
    with pytest.raises(TypeError, match="expected an InferenceResponse, given a str"):
        sender.send("text", flags)  # type: ignore[arg-type]
    response = InferenceResponse()
    sender.send(response, COMPLETE_FINAL)
    assert outlet.sent == [(response, True)]


def test_a_response_that_the_outlet_did_not_take_is_not_counted() -> None:
    class Refusing(Outlet):
        def send(self, response: Any, is_last: bool) -> None:
            raise OSError("nowhere to go")

    outlet = Refusing()
    sender = InferenceResponseSender(outlet, False)
    with pytest.raises(OSError, match="nowhere to go"):
        sender.send(InferenceResponse(), COMPLETE_FINAL)
    error = ModelFailed("it failed")
    sender.fail(error)
    assert outlet.sent == [error]


def responses(count: int, cancelled: list[bool]) -> tuple[ResponseIterator, list[InferenceResponse]]:
    made = [InferenceResponse() for _ in range(count)]
    left = [(response, index == count - 1) for index, response in enumerate(made)]
    return ResponseIterator(lambda: left.pop(0), lambda: cancelled.append(True)), made


def test_the_iterator_can_be_repeated_and_continued() -> None:
    iterator, made = responses(4, [])
    assert next(iterator) is made[0]
    assert list(iterator) == made[1:]
    assert list(iterator) == made
    with pytest.raises(StopIteration, match="Iteration is done"):
        next(iterator)
    assert list(iterator) == made


def test_the_iterator_says_when_a_response_is_taken() -> None:
    iterator, made = responses(2, [])
    taken: list[int] = []
    made[0].taken = lambda: taken.append(1)
    assert list(iterator) == list(iterator) == made
    assert taken == [1]


def test_an_iterator_that_is_left_cancels_its_call() -> None:
    cancelled: list[bool] = []
    iterator, _ = responses(3, cancelled)
    next(iterator)
    del iterator
    gc.collect()
    assert cancelled == [True]
    whole, _ = responses(1, cancelled)
    next(whole)
    whole.cancel()
    del whole
    gc.collect()
    assert cancelled == [True]
