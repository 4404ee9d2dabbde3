"""Output of the control commands: tables that fit the terminal or are complete without one, times, counts."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isochrone.suggestions import plural

#: Width without a terminal: wide enough that no cell is cut.
_WIDE = 200


def make_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE)


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def plain(text: str) -> str:
    """Text of a server or a file, on one line: its control characters are shown, and do not move a cursor."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def cell(text: str) -> str:
    """The same for tables and other places where rich reads markup: brackets are brackets."""
    return escape(plain(text))


def clock(at: float) -> str:
    """Local time of a Unix timestamp."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S") if at else "–"


def counted(number: int, what: str) -> str:
    """``1 worker``, ``2 workers``."""
    return f"{number} {what if number == 1 else plural(what)}"


def ordinal(number: int) -> str:
    """``second``, ``third``, … ``11th``, ``22nd``."""
    words = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
    if 1 <= number <= len(words):
        return words[number - 1]
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def span(seconds: float) -> str:
    """A duration: ``12 ms``, ``3.4 s``, ``5 min 20 s``, ``2 h 05 min``."""
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
