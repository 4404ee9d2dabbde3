"""Memoised plans say exactly what decoding the JSON part says, whatever ids, orders and spaces clients write."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import IsochroneError
from isochrone.protocol.rest import plan_memo as plan_memo_module
from isochrone.protocol.rest.plan import decode_plan
from isochrone.protocol.rest.plan_memo import PlanMemo

IDS = st.one_of(st.none(), st.sampled_from(["", "a", "request-7", 'quo"ted', "é\n", "\\"]), st.text(max_size=8))


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    shape = draw(st.sampled_from([[1, 4], [4], [2, 2]]))
    fields: dict[str, Any] = {
        "id": draw(IDS),
        "inputs": [{"name": "x", "shape": shape, "datatype": "UINT8", "parameters": {"binary_data_size": 4}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": draw(st.booleans())}}],
        "parameters": draw(
            st.sampled_from([None, {"sequence_id": 4}, {"sequence_id": 5, "sequence_end": True}, {"id": "not this"}])
        ),
    }
    present = [(key, value) for key, value in draw(st.permutations(list(fields.items()))) if value is not None]
    text = json.dumps(
        dict(present),
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([None, (",", ":"), (" ,\n", " : ")])),
    )
    if draw(st.integers(0, 9)) == 0:
        text = text[:-1] + ', "id": "second"}'
    return draw(st.sampled_from(["", " \n"])).encode() + text.encode()


def shown(plan: Any, request_id: str) -> Any:
    sequence = (plan.sequence_id, plan.sequence_start, plan.sequence_end, plan.parameters)
    return plan.inputs, plan.outputs, plan.sources, plan.is_plain, sequence, request_id


def outcome(decode: Any, header: bytes) -> Any:
    try:
        return shown(*decode(header))
    except IsochroneError as error:
        return type(error), str(error)


@given(st.lists(headers(), min_size=1, max_size=5), st.lists(st.integers(0, 4), min_size=1, max_size=15), st.data())
def test_any_order_of_headers_decodes_as_each_does_alone(
    pool: list[bytes], order: list[int], data: st.DataObject
) -> None:
    memo = PlanMemo()
    for index in order:
        header = pool[index % len(pool)]
        if data.draw(st.integers(0, 5)) == 0:
            place = data.draw(st.integers(0, len(header) - 1))
            header = (
                header[:place] + data.draw(st.sampled_from([b"", b'"', b"}", b"\\", b"\xff"])) + header[place + 1 :]
            )
        # Pieces of known text in places where they are not valid, and valid text with other ids before and behind it.
        cut = data.draw(st.sampled_from(["", "", "behind", "before", "second"]))
        behind = header.find(b",") + 1
        if cut == "behind":
            header = header[behind:]
        elif cut == "before":
            header = b'{"id":"a",' + header
        elif cut == "second" and header.endswith(b"}"):
            header = header[:-1] + b', "id": "%s"}' % data.draw(st.sampled_from([b"", b"a", b"request-7"]))
        assert outcome(lambda given: memo.decode("m", "", given), header) == outcome(
            lambda given: decode_plan(given, "m", ""), header
        )


class Decodes:
    """Counts the JSON parts that are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(plan_memo_module, "decode_plan", self)

    def __call__(self, header: bytes, model: str, version: str) -> Any:
        self.count += 1
        return decode_plan(header, model, version)


def ordinary(memo: PlanMemo, request_id: str, model: str = "m", **parameters: Any) -> Any:
    tensor = {"name": "x", "shape": [4], "datatype": "UINT8", "parameters": {"binary_data_size": 4}}
    fields = {"id": request_id, "inputs": [tensor], "parameters": {"binary_data_output": True, **parameters}}
    return memo.decode(model, "", json.dumps(fields).encode())


@pytest.mark.interpreted
def test_other_ids_are_decoded_once_per_model(monkeypatch: pytest.MonkeyPatch) -> None:
    decodes = Decodes(monkeypatch)
    memo = PlanMemo()
    for number in range(1000):
        plan, request_id = ordinary(memo, f"request {number}", f"m{number % 50}")
        assert (plan.model_name, request_id) == (f"m{number % 50}", f"request {number}")
    assert decodes.count == 2 * 50, "once with the id, once without"


@pytest.mark.interpreted
def test_the_requests_of_a_sequence_are_decoded_once_per_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    decodes = Decodes(monkeypatch)
    memo = PlanMemo()
    for number in range(400):
        plan, _ = ordinary(memo, str(number), sequence_id=number % 20 + 1, sequence_start=number < 20)
        assert (plan.sequence_id, plan.sequence_start) == (number % 20 + 1, number < 20)
    assert decodes.count == 2 * 40


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_memo_module, "_MAX_PLANS_MEMOISED", 10)
    memo = PlanMemo()
    for number in range(100):
        ordinary(memo, "x" if number % 2 else "", f"m{number % 7}", sequence_id=number)
        assert len(memo._whole) + len(memo._behind_id) <= 10


def test_text_that_is_known_is_not_taken_where_it_is_not_valid() -> None:
    memo = PlanMemo()
    ordinary(memo, "a")
    text = json.dumps({"inputs": [], "parameters": {"binary_data_output": True}}).encode()
    memo.decode("m", "", text)
    memo.decode("m", "", b'{"id":"a",' + text[1:])
    for header in (text[1:], b'{"id":"a",' + text):
        with pytest.raises(IsochroneError):
            memo.decode("m", "", header)
