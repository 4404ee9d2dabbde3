"""Encrypted files: every byte comes back, and no other bytes do."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.secure.encryption.library import TAG, Damaged
from isochrone.secure.encryption.streams import MAGIC, decrypt, encrypt, encrypted_size

KEY, NAME = bytes(range(32)), b"file m 1 model.onnx"
_HEAD = len(MAGIC) + 32
CHUNKS = st.integers(1, 40)
CONTENT = st.binary(max_size=200)


def encrypted(content: bytes, chunk: int, key: bytes = KEY, name: bytes = NAME) -> bytes:
    target = io.BytesIO()
    assert encrypt(key, name, io.BytesIO(content), target.write, chunk) == len(content)
    return target.getvalue()


def decrypted(content: bytes, chunk: int, key: bytes = KEY, name: bytes = NAME) -> bytes:
    target = io.BytesIO()
    assert decrypt(key, name, io.BytesIO(content), target.write, chunk) == len(target.getvalue())
    return target.getvalue()


def pieces(content: bytes, chunk: int) -> list[bytes]:
    size = chunk + TAG
    return [content[at : at + size] for at in range(_HEAD, len(content), size)]


@given(CONTENT, CHUNKS)
def test_every_content_comes_back(content: bytes, chunk: int) -> None:
    made = encrypted(content, chunk)
    assert len(made) == encrypted_size(len(content), chunk)
    assert decrypted(made, chunk) == content


def test_two_encryptions_share_no_chunk() -> None:
    one, other = (encrypted(bytes(64), 16) for _ in range(2))
    assert not set(pieces(one, 16)) & set(pieces(other, 16))
    # Equal chunks of one file differ, too.
    assert len(set(pieces(one, 16))) == 4


@given(CONTENT, CHUNKS, st.data())
def test_a_changed_bit_is_found(content: bytes, chunk: int, data: st.DataObject) -> None:
    made = bytearray(encrypted(content, chunk))
    at = data.draw(st.integers(0, 8 * len(made) - 1))
    made[at // 8] ^= 1 << at % 8
    with pytest.raises(Damaged):
        decrypted(bytes(made), chunk)


@given(CONTENT, CHUNKS, st.data())
def test_a_cut_is_found(content: bytes, chunk: int, data: st.DataObject) -> None:
    made = encrypted(content, chunk)
    # At the end of a chunk, too, where only the flag of the last one reveals it.
    kept = data.draw(st.integers(0, len(made) - 1) | st.sampled_from(range(_HEAD, len(made), chunk + TAG)))
    with pytest.raises(Damaged):
        decrypted(made[:kept], chunk)


@given(CONTENT, CHUNKS, st.binary(min_size=1, max_size=60))
def test_more_bytes_are_found(content: bytes, chunk: int, more: bytes) -> None:
    with pytest.raises(Damaged):
        decrypted(encrypted(content, chunk) + more, chunk)


@given(st.binary(min_size=1, max_size=200), CHUNKS, st.data())
def test_chunks_in_another_order_are_found(content: bytes, chunk: int, data: st.DataObject) -> None:
    made = encrypted(content, chunk)
    parts = pieces(made, chunk)
    other = data.draw(st.permutations(parts) | st.lists(st.sampled_from(parts), max_size=len(parts) + 2))
    if list(other) == parts:
        return
    with pytest.raises(Damaged):
        decrypted(made[:_HEAD] + b"".join(other), chunk)


@given(CONTENT, CHUNKS, st.data())
def test_chunks_of_another_file_are_found(content: bytes, chunk: int, data: st.DataObject) -> None:
    """Of the same key, name and size: their salts differ."""
    one, other = encrypted(content, chunk), encrypted(content, chunk)
    parts, foreign = pieces(one, chunk), pieces(other, chunk)
    at = data.draw(st.integers(0, len(parts) - 1))
    parts[at] = foreign[at]
    with pytest.raises(Damaged):
        decrypted(one[:_HEAD] + b"".join(parts), chunk)


@given(CONTENT, CHUNKS, CHUNKS)
def test_another_key_name_or_chunk_size_opens_nothing(content: bytes, chunk: int, other: int) -> None:
    made = encrypted(content, chunk)
    with pytest.raises(Damaged):
        decrypted(made, chunk, key=bytes(32))
    with pytest.raises(Damaged):
        decrypted(made, chunk, name=NAME + b"2")
    if other < len(content) and chunk != other:
        with pytest.raises(Damaged):
            decrypted(made, other)


@given(st.binary(max_size=100), CHUNKS)
def test_arbitrary_bytes_are_no_file(content: bytes, chunk: int) -> None:
    for given_bytes in (content, MAGIC + content, MAGIC + bytes(32) + content):
        with pytest.raises(Damaged):
            decrypted(given_bytes, chunk)


def test_nothing_of_a_file_is_written_before_its_chunk_is_proven() -> None:
    made = bytearray(encrypted(b"a" * 16 + b"b" * 16, 16))
    made[-1] ^= 1
    written = io.BytesIO()
    with pytest.raises(Damaged):
        decrypt(KEY, NAME, io.BytesIO(bytes(made)), written.write, 16)
    assert written.getvalue() == b"a" * 16
