"""JSON is decoded on the event loop: how much of it one request may bring is bounded."""

from __future__ import annotations

import pytest

from isochrone.errors import InvalidArgument, PayloadTooLarge
from isochrone.protocol.rest.json_bodies import MAX_JSON_BYTES, reject_repeated_keys
from isochrone.protocol.rest.plan import decode_plan


def test_a_json_part_over_the_limit_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(PayloadTooLarge, match="send tensors as binary data"):
        decode_plan(b" " * (MAX_JSON_BYTES + 1), "m", "")


def test_not_a_number_in_megabytes_of_json_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match="NaN or Infinity"):
        decode_plan(b'{"inputs": [NaN]}' + b" " * (1 << 20), "m", "")


def test_a_repeated_key_among_very_many_is_found() -> None:
    keys = ", ".join(f'"{index}": 0' for index in range(200_000))
    with pytest.raises(InvalidArgument, match="'199999' already exists"):
        reject_repeated_keys(f'{{{keys}, "199999": 1}}'.encode())
