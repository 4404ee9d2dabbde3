"""Which entries of an access file name a caller: as if each was tried, in order."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from isochrone.secure.access.subjects import SubjectIndex

_subjects = st.text("ab:/.", min_size=1, max_size=4)
_patterns = st.one_of(_subjects, st.text("ab:*.", min_size=1, max_size=4))


def _tried(entries: list[list[str]], subjects: list[str]) -> list[int]:
    def names(pattern: str, subject: str) -> bool:
        return re.fullmatch(re.escape(pattern).replace(r"\*", "(?s:.*)"), subject) is not None

    return [
        number
        for number, patterns in enumerate(entries)
        if any(names(pattern, subject) for pattern in patterns for subject in subjects)
    ]


@given(st.lists(st.lists(_patterns, max_size=4), max_size=6), st.lists(_subjects, max_size=3))
def test_finds_what_trying_each_finds(entries: list[list[str]], subjects: list[str]) -> None:
    assert SubjectIndex(entries).matching(subjects) == _tried(entries, subjects)


def test_a_star_also_stands_for_a_line_break_and_nothing_else_is_special() -> None:
    index = SubjectIndex([["oidc:plant/*"], ["oidc:plant/[ab]"], ["oidc:plant/a?"]])
    assert index.matching(["oidc:plant/a\nb"]) == [0]
    assert index.matching(["oidc:plant/a"]) == [0]
    assert index.matching(["oidc:plant/[ab]"]) == [0, 1]
