"""Keys of ``isochrone top`` from the bytes of terminals, however they are divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.cli.top.screen.keys import KeyReader


def waits(reader: KeyReader) -> bool:
    return reader.is_waiting


@pytest.mark.parametrize(
    ("received", "keys"),
    [
        (b"q/?", ["q", "/", "?"]),
        (b"\x1b[A\x1bOB\x1b[C\x1bOD", ["up", "down", "right", "left"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~\x1b[1~\x1bOF", ["page up", "page down", "home", "end", "home", "end"]),
        (b"\r\n\t\x1b[Z\x7f\x08\x15", ["enter", "enter", "tab", "back tab", "backspace", "backspace", "clear"]),
        ("é模".encode(), ["é", "模"]),
        (b"\x1b[15~\x1b[<0;3;4M\x1b[1;5Ax", ["x"]),
        (b"\x1bq", ["escape", "q"]),
        (b"\x1b\x1b[A", ["escape", "up"]),
        (b"\x00\x01\xffz", ["�", "z"]),
    ],
)
def test_bytes_become_keys(received: bytes, keys: list[str]) -> None:
    assert KeyReader().feed(received) == keys
    # One byte at a time, as a slow connection brings them.
    reader = KeyReader()
    assert [key for byte in received for key in reader.feed(bytes([byte]))] == keys
    assert not waits(reader)


def test_a_lone_escape_waits_until_it_is_given_up() -> None:
    reader = KeyReader()
    assert reader.feed(b"\x1b") == []
    assert waits(reader)
    assert reader.give_up() == ["escape"]
    assert not waits(reader)
    assert reader.give_up() == []
    assert reader.feed(b"\x1b[1") == []
    assert reader.give_up() == ["escape", "[", "1"]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes_give_keys_and_keep_little(parts: list[bytes]) -> None:
    reader = KeyReader()
    for part in parts:
        for key in reader.feed(part):
            assert key
            assert key.isprintable()
    reader.give_up()
    assert not waits(reader)
