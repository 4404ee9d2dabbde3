"""The reader of settings files on sections and records of its own: names, units, bounds, errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from isochrone.settings.documents import Document, as_mapping, parse_document
from isochrone.settings.problems import SettingsError, dotted
from isochrone.settings.ranges import Amount, Duration, PositiveAmount, Range, Share
from isochrone.settings.records import read_over, section_of
from isochrone.settings.sections import Section, read_section


class Round(Section):
    shape: Literal["round"] = "round"
    radius: PositiveAmount


class Square(Section):
    shape: Literal["square"] = "square"
    side: PositiveAmount = 1.0


class Drawing(Section):
    shapes: list[Annotated[Round | Square, Field(discriminator="shape")]] = Field(min_length=1)
    title: str = ""
    scale: Annotated[float, Range(0, below=1)] = 0.5
    layers: dict[str, Share] = Field(default={})


def errors_of(text: str, where: str = "a.yaml") -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read_section(Drawing, parse_document(text, where))
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("title: a", "a.yaml:1: shapes: expected a value, given nothing"),
        ("shapes: []", "a.yaml:1: shapes: expected at least 1, given none"),
        ("shapes: [{side: 1}]", "a.yaml:1: shapes[0].shape: expected round or square, given nothing"),
        (
            "shapes:\n- {shape: sqare}",
            "a.yaml:2: shapes[0].shape: expected round or square (did you mean 'square'?), given 'sqare'",
        ),
        ("shapes:\n- {shape: square, side: 0}", "a.yaml:2: shapes[0].side: expected a number above 0, given 0"),
        ("shapes:\n- {shape: round}", "a.yaml:2: shapes[0].radius: expected a value, given nothing"),
        (
            "shapes:\n- shape: square\n  sied: 1",
            "a.yaml:3: shapes[0].sied: expected a known key (did you mean 'side'?), given an unknown key",
        ),
        (
            "shapes: [{shape: square}]\nscale: 1",
            "a.yaml:2: scale: expected a number, at least 0 and below 1, given 1",
        ),
        ("shapes: [{shape: square}]\nlayers: {a: 2}", "a.yaml:2: layers.a: expected a number from 0 to 1, given 2"),
        (
            "shapes: [{shape: square}]\nlayers: {7: 1}",
            "a.yaml:2: layers.7: expected a key that is a string (in quotes: '7'), given 7",
        ),
        ("shapes: [{shape: square}]\ntitle: 5", "a.yaml:2: title: expected a string (in quotes: '5'), given 5"),
        ("shapes: {}", "a.yaml:1: shapes: expected a list, given {}"),
    ],
)
def test_an_error_names_file_line_key_expected_and_given(text: str, error: str) -> None:
    assert errors_of(text) == [error]


def test_errors_are_in_the_order_of_the_file() -> None:
    lines = errors_of("title: 5\nscale: x\nshapes:\n- {shape: square, side: -1}\nlayer: {}")
    assert [line.split(":")[1] for line in lines] == ["1", "2", "4", "5"]


def test_json_has_no_lines_and_no_duplicate_keys() -> None:
    assert errors_of('{"shapes": []}', "a.json") == ["a.json: shapes: expected at least 1, given none"]
    (error,) = errors_of('{"shapes": [], "shapes": []}', "a.json")
    assert error == "a.json: not valid JSON: the key 'shapes' for a second time"


@given(st.text(max_size=40), st.sampled_from(["a.yaml", "a.json"]))
def test_any_text_is_a_document_or_an_error(text: str, where: str) -> None:
    try:
        parse_document(text, where)
    except SettingsError:
        pass


@pytest.mark.parametrize(("data", "given"), [(None, "nothing"), ([1], "[1]"), ("x" * 99, "'" + "x" * 59 + "…")])
def test_a_document_that_is_no_mapping(data: object, given: str) -> None:
    with pytest.raises(SettingsError) as caught:
        as_mapping(Document("a.yaml", data, None), "a mapping with shapes")
    assert str(caught.value) == f"a.yaml: file: expected a mapping with shapes, given {given}"


def test_paths_are_dotted() -> None:
    assert dotted(("models", ".a.b", "pools", 0)) == "models..a.b.pools[0]"
    assert dotted((".hidden",)) == ".hidden"


@dataclass(frozen=True, slots=True)
class Inner:
    enabled: bool = False
    wait_ns: Duration = 5_000_000
    share: Share = 0.5


@dataclass(frozen=True, slots=True)
class Outer:
    name: str = ""
    limit_bytes: Annotated[int, Range(0)] = 0
    rate: Amount = 1.0
    weights: tuple[Share, ...] = ()
    inner: Inner = field(default_factory=Inner)


def outer(data: object, base: Outer | None = None) -> Outer:
    return read_over(base or Outer(), read_section(section_of(Outer), Document("a.yaml", data, None)))


def test_a_record_is_read_in_the_units_of_the_file() -> None:
    read = outer({"name": 2, "limit_mb": 1.5, "weights": [0, 1], "inner": {"wait_ms": 0.25}})
    assert read == Outer("2", 3 << 19, 1.0, (0.0, 1.0), Inner(True, 250_000))


def test_settings_that_are_left_out_keep_the_values_of_the_base() -> None:
    base = Outer("a", 7, 2.0, (0.5,), Inner(True, 1, 0.25))
    assert outer(None, base) == base
    assert outer({"rate": 3, "inner": {"share": 1}}, base) == Outer("a", 7, 3.0, (0.5,), Inner(True, 1, 1.0))
    assert outer({"inner": False}, base).inner == Inner(False, 1, 0.25)


@pytest.mark.parametrize("value", [-1, "1", True, float("nan"), float("inf"), 10**400, None])
def test_a_number_out_of_bounds_or_of_another_type_is_an_error(value: object) -> None:
    for key, expected in (("limit_mb", "a number of MiB, at least 0"), ("rate", "a number, at least 0")):
        with pytest.raises(SettingsError) as caught:
            outer({key: value})
        assert (caught.value.key, caught.value.expected) == (key, expected)
