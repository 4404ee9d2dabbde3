"""A priority that JSON asks for is found however it is spelled, or the request is rejected."""

from __future__ import annotations

import json

import pytest

from isochrone.errors import InvalidArgument
from isochrone.gateway.traffic.asked_priority import asked_priority

TENSOR = json.dumps({"name": "X", "data": [0.5] * 20_000})


def asked(text: str) -> int:
    return asked_priority(text.encode(), len(text.encode()))


@pytest.mark.parametrize(
    ("text", "priority"),
    [
        ('{"parameters": {"priority": 1}}', 1),
        ('{"parameters": {"prior\\u0069ty": 1}}', 1),
        ('{"par\\u0061meters": {"\\u0070riority": 1}}', 1),
        ('{"priority": 3, "parameters": {"priority": 2}}', 2),
        ('{"priority": 1, "prompt": "x"}', 1),
        (f'{{"a": {TENSOR}, "parameters": {{"priority": 1}}, "inputs": [{TENSOR}]}}', 1),
        (f'{{"a": {TENSOR}, "parameters": {{"prior\\u0069ty": 1}}, "inputs": [{TENSOR}, {TENSOR}]}}', 1),
        ('{"parameters": {"priority": 2}, "parameters": {"priority": 1}}', 1),
        ('{"parameters": {"priority": 1}, "data": [NaN]}', 1),
        ('{"parameters": {"priority": 1.0}}', 1),
        ('{"parameters": {"priority": "1"}}', 1),
        ('{"parameters": {"priority": true}}', 0),
        ('{"parameters": {"priority": -1}}', 0),
        ('{"parameters": [1], "priority": 1}', 1),
        ('{"parameters": null, "text": "priority\\n"}', 0),
        ('{"inputs": [{"priority": 1}]}', 0),
        ("not JSON, and nothing that could hide one", 0),
        ("", 0),
    ],
)
def test_found(text: str, priority: int) -> None:
    assert asked(text) == priority


@pytest.mark.parametrize(
    "text",
    [
        '{"priority": 1',
        '{"\\u0070riority"',
        '{"priority": 1, "x": ' + "[" * 100_000,
        '{"priority": NaN' + " " * 200_000,
    ],
)
def test_what_may_ask_for_one_and_cannot_be_read_is_rejected(text: str) -> None:
    with pytest.raises(InvalidArgument, match="failed to parse"):
        asked(text)


def test_large_texts_are_searched_and_not_parsed() -> None:
    large = '{"x": "' + "y" * (2 << 20) + '"%s}'
    assert asked(large % "") == 0
    for more in (', "priority": 1', ', "parameters": {"\\u0070riority": 1}'):
        with pytest.raises(InvalidArgument, match="your role limits the priority"):
            asked(large % more)


def test_what_stands_behind_the_json_part_counts_not() -> None:
    text = b'{"parameters": {}}' + b'"priority"'
    assert asked_priority(text, 18) == 0
