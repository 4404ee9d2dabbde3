"""From a position in a config.pbtxt to its key, such as ``input[1].data_type``, for errors.

protobuf's parser reports a line and a column at most. The keys come from the message descriptors, so that a new field
in NVIDIA's messages needs no change here.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from isochrone.protocol.control_json import is_repeated

_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)|(?P<string>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)|(?P<word>[\w.+-]+)|(?P<mark>[^\s])"""
)


class _Scope:
    """One open message in the text: its type, the count of each field, and the current key."""

    __slots__ = ("counts", "field", "field_name", "in_list", "message", "prefix")

    def __init__(self, message: Any, prefix: str) -> None:
        self.message, self.prefix = message, prefix
        self.counts: dict[str, int] = {}
        self.field_name = ""
        self.field: Any = None
        self.in_list = False

    def start_field(self, name: str) -> None:
        self.field_name = name
        self.field = self.message.fields_by_name.get(name) if self.message is not None else None
        self.counts[name] = self.counts.get(name, -1) + 1

    def path(self) -> str:
        index = f"[{self.counts[self.field_name]}]" if self.field is not None and is_repeated(self.field) else ""
        dot = "." if self.prefix and self.field_name else ""
        return f"{self.prefix}{dot}{self.field_name}{index if self.field_name else ''}"


class Bracket(NamedTuple):
    """An open bracket: its position, from 1, and its key."""

    mark: str
    line: int
    column: int
    key: str

    @property
    def closing(self) -> str:
        return {"{": "}", "[": "]", "<": ">"}[self.mark]

    def __str__(self) -> str:
        return f"the '{self.mark}' at {self.line}:{self.column}"


class Place(NamedTuple):
    """The context of a position in a text-format message."""

    key: str
    #: None if the key is unknown.
    field: Any
    #: Outermost first.
    open: tuple[Bracket, ...]
    #: The types of the open messages, outermost first; None: unknown.
    messages: tuple[Any, ...]


def place_at(text: str, line: int, column: int, root: Any) -> Place:
    """The place of a position, from 1, in a text-format message.

    It reads the text up to the position only, so the text may be broken there.
    """
    lines = text.split("\n")
    stop = sum(len(before) + 1 for before in lines[: line - 1]) + max(column - 1, 0)
    scopes = [_Scope(root, "")]
    brackets: list[Bracket] = []
    expect_value = False
    for token in _TOKEN.finditer(text):
        kind, value = token.lastgroup, token.group()
        # A word at the position may be the key; a mark there is the error.
        if token.start() > stop or (token.start() == stop and kind == "mark"):
            break
        scope = scopes[-1]
        if kind == "comment":
            continue
        if kind == "word":
            if not expect_value and not scope.in_list and not value[0].isdigit():
                scope.start_field(value)
        elif value == ":":
            expect_value = True
            continue
        elif value in "[{<":
            brackets.append(_bracket(text, token.start(), value, scope))
            if value == "[":
                scope.in_list = True
            else:
                inner = scope.field.message_type if scope.field is not None else None
                scopes.append(_Scope(inner, scope.path()))
        elif value in "]}>":
            if brackets:
                brackets.pop()
            if value == "]":
                scope.in_list = False
            elif len(scopes) > 1:
                scopes.pop()
        elif value == "," and scope.in_list:
            scope.start_field(scope.field_name)
        expect_value = False
    key = scopes[-1].path() or "(top level)"
    return Place(key, scopes[-1].field, tuple(brackets), tuple(scope.message for scope in scopes))


def _bracket(text: str, start: int, mark: str, scope: _Scope) -> Bracket:
    line = text.count("\n", 0, start) + 1
    column = start - text.rfind("\n", 0, start)
    key = scope.path()
    # A list's own key has no number.
    return Bracket(mark, line, column, key.rpartition("[")[0] or key if mark == "[" else key)
