"""The help: every key, and the columns of the current list. Pure."""

from __future__ import annotations

from rich.text import Text

from isochrone.cli.top.screen.columns import COLUMNS

_KEYS = (
    ("tab, left, right, 1 2 3", "models, workers, gateways"),
    ("up, down, page up, page down, home, end", "select a line (also k j g G)"),
    ("enter", "details of the line; escape goes back"),
    ("/", "filter the list; escape clears it"),
    ("p, space", "pause and continue"),
    ("R", "reverse the order"),
    ("?, h", "this help"),
    ("q, ctrl-c", "quit"),
)
_WIDTH, _SORT_WIDTH = 42, 6


def help_page(kind: str) -> list[Text]:
    keys = [_line(key, meaning, _WIDTH) for key, meaning in _KEYS]
    sorting = [_line(each.key, f"{each.title}: {each.meaning}", _SORT_WIDTH) for each in COLUMNS[kind]]
    heading = Text("sort by a column; the same key again reverses the order", style="bold")
    return [Text("keys", style="bold"), *keys, heading, *sorting]


def _line(key: str, meaning: str, width: int) -> Text:
    return Text.assemble((f"  {key}".ljust(width), "cyan"), meaning)
