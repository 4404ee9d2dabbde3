"""The header that pins an ensemble's stages: what is written is read back, and what makes no sense is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import InvalidArgument
from isochrone.protocol.headers.request_fields import request_fields
from isochrone.protocol.headers.stages import STAGES_HEADER, parse_stages, stages_value
from isochrone.wire.exchange import Head

names = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=20)
versions = st.integers(1, 2**63 - 1).map(str)


@given(st.dictionaries(names, versions, min_size=1, max_size=5))
def test_what_is_written_is_read_back(stages: dict[str, str]) -> None:
    value = stages_value(stages)
    assert parse_stages(value) == stages
    assert stages_value(dict(reversed(stages.items()))) == value
    assert value.isascii()


def test_the_plain_form() -> None:
    assert parse_stages(b"preprocess=2, detector=10") == {"preprocess": "2", "detector": "10"}
    assert parse_stages(b"a=1,a=1") == {"a": "1"}


@pytest.mark.parametrize(
    "value", [b"", b"a", b"a=", b"=1", b"a=0", b"a=-1", b"a=01", b"a=latest", b"a=1,", b"a=1,b", b"a=1;b=2", b"a%ff=1"]
)
def test_what_makes_no_sense_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidArgument, match="header x-isochrone-stages: expected "):
        parse_stages(value)


def test_two_versions_of_one_stage_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="expected one version of 'a', given '1 and 2'"):
        parse_stages(b"a=1,b=1,a=2")


@given(st.binary(max_size=40))
def test_no_bytes_break_it(value: bytes) -> None:
    try:
        stages = parse_stages(value)
    except InvalidArgument:
        return
    assert stages
    assert all(version.isdigit() for version in stages.values())


def test_a_head_without_it_pins_nothing() -> None:
    assert request_fields(Head(b"POST", b"/", ((b"host", b"x"),))).stages is None
    assert request_fields(Head(b"POST", b"/", ((STAGES_HEADER, b"a=2"),))).stages == {"a": "2"}
