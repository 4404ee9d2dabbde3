"""Indexes that are read again and again are decoded once."""

from __future__ import annotations

import json

import msgspec
import pytest

from isochrone.gateway.monitoring.indexes import Indexes


def body(*versions: str) -> bytes:
    return json.dumps([{"name": "m", "version": version, "state": "READY"} for version in versions]).encode()


def test_the_same_bytes_of_many_endpoints_are_decoded_once() -> None:
    indexes = Indexes()
    found = [indexes.read(bytearray(body("1", "2"))) for _ in range(100)]
    assert indexes.decoded == 1
    assert all(kept is found[0][0] and served is found[0][1] for kept, served in found)
    assert found[0][1] == {"m": {"1": "", "2": ""}}


def test_as_many_are_remembered_as_a_fleet_has_pools() -> None:
    indexes = Indexes()
    for _ in range(2):
        for number in range(100):
            assert indexes.read(body(str(number)))[1] == {"m": {str(number): ""}}
    assert len(indexes._known) <= 16


def test_what_does_not_parse_is_not_remembered() -> None:
    indexes = Indexes()
    for _ in range(2):
        with pytest.raises(msgspec.DecodeError):
            indexes.read(b"{")
    assert not indexes._known
