"""Rejections of which nothing has run are marked; errors of a request that may have run are not."""

from __future__ import annotations

from isochrone.errors import QueueFull, Unavailable
from isochrone.protocol.headers.rejections import UNPROCESSED_HEADER, is_marked, mark, rest_fields


def test_only_what_has_not_begun_is_marked() -> None:
    assert mark(Unavailable("the instance is gone")) == ()
    fields = mark(QueueFull("too many").not_begun())
    assert [name for name, _ in fields] == [UNPROCESSED_HEADER]
    assert is_marked(fields)


def test_an_error_of_a_part_is_not_the_mark_of_the_whole() -> None:
    step = QueueFull("too many").not_begun()
    whole = step.begun()
    assert isinstance(whole, QueueFull)
    assert (str(whole), whole.unprocessed) == ("too many", False)
    assert step.unprocessed, "the step's own caller may still repeat it"
    plain = Unavailable("gone")
    assert plain.begun() is plain


def test_when_to_try_again_is_a_field_of_http() -> None:
    error = Unavailable("its process starts again").not_begun()
    assert rest_fields(error) == mark(error)
    # Whole seconds, none too early.
    error.retry_after = 0.2
    assert rest_fields(error) == (*mark(error), (b"retry-after", b"1"))
    error.retry_after = 3
    assert rest_fields(error.begun()) == ((b"retry-after", b"3"),)
