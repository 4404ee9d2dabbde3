"""The file divisions.json: what is written is read, and what is wrong is named."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import ConfigError
from isochrone.models.divisions import Division, Divisions, Link, read_divisions, write_divisions

count = st.integers(0, 2**53)


@st.composite
def plans(draw: st.DrawFn) -> Divisions:
    cuts = draw(st.lists(st.integers(0, 10_000), max_size=4, unique=True))
    divisions = [Division("edge", "m.edge", draw(count), 0, 0, 0, draw(count))]
    names = ["core", *(f"cut-{number}" for number in cuts)]
    divisions += [Division(name, f"m.{name}", *(draw(count) for _ in range(6))) for name in names]
    rate = draw(st.one_of(st.just(math.inf), st.floats(1, 1e12)))
    round_trip = draw(st.integers(0, 10**12))
    sizes = draw(st.lists(st.integers(1, 2**40), max_size=4, unique=True))
    times = draw(st.lists(st.integers(round_trip, 10**13), min_size=len(sizes), max_size=len(sizes)))
    points = tuple((size, time / 1e9) for size, time in zip(sorted(sizes), sorted(times), strict=True))
    link = Link(round_trip / 1e9, rate, draw(count) / 1e9, points)
    return Divisions(draw(st.sampled_from([each.name for each in divisions])), link, tuple(divisions))


@given(plans())
def test_what_is_written_is_read(plan: Divisions) -> None:
    found = read_divisions(write_divisions(plan), "divisions.json")
    assert (found.present, found.divisions) == (plan.present, plan.divisions)
    assert found.link.round_trip == pytest.approx(plan.link.round_trip, abs=1e-9)
    assert found.link.bytes_per_second == plan.link.bytes_per_second
    assert [size for size, _ in found.link.points] == [size for size, _ in plan.link.points]
    assert [each for _, each in found.link.points] == pytest.approx([each for _, each in plan.link.points], abs=1e-9)


def good() -> dict[str, Any]:
    divisions = (Division("edge", "m.edge", 9, 0, 0, 0, 1), Division("cut-3", "m.cut-3", 1, 2, 3, 4, 5))
    return json.loads(write_divisions(Divisions("edge", Link(0.1, 1e6), divisions)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("format",), 2, "format: expected 1, given 2"),
        (("present",), "core", "present: expected one of edge, cut-3, given 'core'"),
        (("divisions",), [], "divisions: expected at least one"),
        (("divisions", 1, "name"), "split", r"divisions\[1\].name: expected edge, core, or a cut such as cut-12"),
        (("divisions", 1, "name"), "edge", r"divisions\[1\].name: expected one that no other division has"),
        (("divisions", 1, "model"), "m.edge", r"divisions\[1\].model: expected one that no other division has"),
        (("divisions", 1, "model"), "", r"divisions\[1\].model"),
        (("divisions", 1, "edge_ns"), -1, r"divisions\[1\].edge_ns: expected at least 0"),
        (("divisions", 1, "edge_ns"), "1", r"Expected `int`, got `str` - at `\$.divisions\[1\].edge_ns`"),
        (("divisions", 1, "edge_ms"), 1, "unknown field `edge_ms`"),
        (("divisions", 0, "core_ns"), 7, "the division edge uses no link"),
        (("link", "bytes_per_second"), 0, "link.bytes_per_second: expected a number above 0, or null"),
        (("link", "round_trip_ns"), -1, "link.round_trip_ns: expected at least 0"),
        (("link", "points"), [[100, 1]], r"link.points\[0\]: expected more bytes than before, and no less time"),
        (("link", "points"), [[9, 10**9], [9, 10**9]], r"link.points\[1\]"),
        (("divisions", 0, "coding_ns"), 7, "the division edge uses no link"),
        (("divisions", 1, "coding_ns"), -1, r"divisions\[1\].coding_ns: expected at least 0"),
        (("link",), None, "Expected `object`, got `null`"),
    ],
)
def test_errors_name_what_is_wrong(path: tuple[Any, ...], value: Any, named: str) -> None:
    file = good()
    place = file
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ConfigError, match=named):
        read_divisions(json.dumps(file).encode(), "net/1/divisions.json")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": 1}'])
def test_other_content_is_rejected(content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"net/1/divisions.json: content: expected divisions as isochrone partition"):
        read_divisions(content, "net/1/divisions.json")
