"""Documents that would take a reader long, or make it fail in a way of its own: one error each."""

from __future__ import annotations

import pytest

from isochrone.settings.documents import parse_document
from isochrone.settings.problems import SettingsError

#: Text → a part of the error.
YAML = {
    "a number of base 60": ("name: 1" + ":59" * 50_000, ":1: not valid YAML: a number of more than 1000 characters"),
    "one that is too large for a float": (
        "a: 1\nname: 9" + ":59" * 300 + ".5",
        "a value that is not of its tag: int too large",
    ),
    "hexadecimal digits": ("name: 0x" + "f" * 10_000, "a number of more than 1000 characters; quote it if it is text"),
    "digits as a key": ("? " + "9" * 1001 + "\n: 1", "a number of more than 1000 characters"),
    "digits in a list that is a key": ("? [" + "9" * 1001 + "]\n: 1", "a number of more than 1000 characters"),
    "an int without digits": ('name: !!int ""', "a value that is not of its tag"),
    "a float without digits": ('name: !!float ""', "a value that is not of its tag"),
    "no truth": ("name: !!bool maybe", "a value that is not of its tag"),
    "no time": ("name: !!timestamp soon", "a value that is not of its tag"),
    "half a character": ('name: "\\ud800"', "half of a surrogate pair"),
    "half a character as a key": ('"\\udc80": 1', "half of a surrogate pair"),
    "lists for keys": ("? [a]\n: 1", "unhashable key"),
    "a Python object": ("name: !!python/object/apply:os.system [id]", "could not determine a constructor"),
    "aliases of aliases as keys": (
        "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(
            f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
            for before, name in zip("abcde", "bcdef", strict=True)
        )
        + "? *f\n: 1",
        "more than 500000 values",
    ),
}


@pytest.mark.parametrize("name", YAML)
def test_yaml_that_costs_or_breaks(name: str) -> None:
    text, error = YAML[name]
    with pytest.raises(SettingsError) as refused:
        parse_document(text, "fleet.yaml")
    assert error in str(refused.value)
    assert len(str(refused.value)) < 500


def test_numbers_and_text_of_numbers_that_are_settings() -> None:
    text = f'a: 1:30\nb: 0x1F\nc: 1e300\nd: "{"9" * 1000}"\ne: {"9" * 100}\n12: x'
    read = parse_document(text, "fleet.yaml").data
    assert read == {"a": 90, "b": 31, "c": "1e300", "d": "9" * 1000, "e": int("9" * 100), 12: "x"}


def test_a_key_that_comes_twice_after_many_others_in_json() -> None:
    """In time that grows with their number, not with its square: of these, most of an hour."""
    text = "{" + ",".join(f'"k{number}": 1' for number in range(400_000)) + ', "z": 1, "z": 2}'
    with pytest.raises(SettingsError, match="the key 'z' for a second time"):
        parse_document(text, "a.json")


@pytest.mark.parametrize("text", ['{"name": "\\ud800"}', '{"\\udfff": [1]}', '{"a": [["\\ud800\\ud800"]]}'])
def test_json_with_half_a_character(text: str) -> None:
    with pytest.raises(SettingsError, match="half of a surrogate pair"):
        parse_document(text, "a.json")
    whole = text.replace("\\udfff", "\\ud83d\\ude80").replace("\\ud800\\ud800", "\\ud83d\\ude80")
    assert parse_document(whole.replace('"\\ud800"', '"\\ud83d\\ude80"'), "a.json").data
