"""The text of an answer while it grows: complete characters, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st
from toy_model import ByteTokenizer

from isochrone.worker.generation.answers.text import AnswerText

PIECES = [
    b"a",
    b"b",
    b"ab",
    b" ",
    "é".encode(),
    "é".encode()[:1],
    "é".encode()[1:],
    "😀".encode()[:2],
    "😀".encode()[2:],
]


def decode_pieces(tokens: Sequence[int]) -> str:
    """A tokenizer of words: it leaves out the space before the first, as those of SentencePiece do."""
    text = b"".join(PIECES[token] for token in tokens).decode("utf-8", "replace")
    return text.removeprefix(" ")


def whole(text: str, stops: Sequence[str]) -> str:
    """The text before the stop string that is complete first."""
    found = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    return text[: min(found)[1]] if found else text


@given(
    st.lists(st.integers(0, len(PIECES) - 1), max_size=40),
    st.lists(st.text("ab é", min_size=1, max_size=4), max_size=3),
)
@example([0, 1], ["ab", "b"])
@example([5, 0], [])
def test_the_pieces_add_up_to_the_text_before_the_first_stop_string(tokens: list[int], stops: list[str]) -> None:
    answer = AnswerText(decode_pieces, stops)
    pieces = []
    for token in tokens:
        pieces.append(answer.add(token))
        if answer.is_stopped:
            break
    pieces.append(answer.end())
    assert "".join(pieces) == whole(decode_pieces(tokens), stops)
    assert answer.was_cut == any(stop in decode_pieces(tokens) for stop in stops)


def decode_bytes(tokens: Sequence[int]) -> str:
    """A tokenizer of bytes: a text is the bytes of its tokens."""
    return b"".join(PIECES[token] for token in tokens).decode("utf-8", "replace")


def piece_of(token: int) -> str | None:
    return None if "\ufffd" in (text := decode_bytes((token,))) else text


@given(
    st.lists(st.integers(0, len(PIECES) - 1), max_size=40),
    st.lists(st.text("ab é", min_size=1, max_size=4), max_size=3),
)
def test_known_pieces_change_nothing(tokens: list[int], stops: list[str]) -> None:
    decoding, knowing = AnswerText(decode_bytes, stops), AnswerText(decode_bytes, stops, piece_of)
    for token in tokens:
        assert knowing.add(token) == decoding.add(token)
    assert (knowing.end(), knowing.was_cut) == (decoding.end(), decoding.was_cut)


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=12).map("".join))
def test_no_half_characters(text: str) -> None:
    answer = AnswerText(ByteTokenizer().decode)
    encoded = text.encode("utf-8", "replace")
    decoded = encoded.decode()
    so_far = ""
    for byte in encoded:
        so_far += answer.add(byte)
        assert decoded.startswith(so_far)
    assert so_far + answer.end() == decoded


def test_text_is_held_back_only_while_it_may_be_a_stop_string() -> None:
    answer = AnswerText(ByteTokenizer().decode, ["\n\nUser"])
    given = [answer.add(byte) for byte in b"x\n\nUs\n\nUserY"]
    assert given == ["x", "", "", "", "", "\n\nUs", "", "", "", "", "", ""]
    assert answer.was_cut
    assert answer.end() == ""


def test_stop_strings_count_only_later() -> None:
    answer = AnswerText(ByteTokenizer().decode, ["b"])
    assert [answer.add(byte, may_stop=index > 1) for index, byte in enumerate(b"abab")] == ["a", "b", "a", ""]


def test_bytes_that_never_become_a_character() -> None:
    answer = AnswerText(ByteTokenizer().decode)
    text = "".join(answer.add(0xFF) for _ in range(500))
    # At most the last three could become one.
    assert len(text) >= 497
    assert text + answer.end() == "\ufffd" * 500
