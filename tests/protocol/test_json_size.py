"""JSON is decoded on the event loop: how much of it one request may bring is bounded."""

from __future__ import annotations

import pytest

from isochrone.errors import PayloadTooLarge
from isochrone.protocol.json_bodies import MAX_JSON_BYTES
from isochrone.protocol.rest_infer import decode_plan


def test_a_json_part_over_the_limit_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(PayloadTooLarge, match="send tensors as binary data"):
        decode_plan(b" " * (MAX_JSON_BYTES + 1), 0, "m", "")
