"""The state of the screen, and what keys, samples, failures and sizes make of it. Pure.

``view + event → view``; no clock, no terminal. The selection follows its line by name through every new order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from isochrone.cli.top.samples import GATEWAYS, KINDS, MODELS, WORKERS, Line, Sample
from isochrone.cli.top.screen.columns import COLUMNS, column
from isochrone.cli.top.screen.histories import Histories, add_sample
from isochrone.cli.top.screen.ordering import matching, ordered

#: Characters of a filter.
_LONGEST_FILTER = 100
#: Lines of the screen that are not lines of the list, without notices: title, totals, tabs, header, footer.
_FRAME_LINES = 5
#: Notices that are shown at most.
MOST_NOTICES = 3


class Mode(Enum):
    LIST = "list"
    FILTER = "filter"
    HELP = "help"
    DETAILS = "details"


@dataclass(frozen=True, slots=True)
class Tab:
    """The list of one kind."""

    sort: str = "requests"
    descending: bool = True
    filter: str = ""
    #: The selected line: its name, and its place among the lines that the filter leaves.
    selected: str = ""
    place: int = 0
    #: The first line that is shown.
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Data:
    sample: Sample | None = None
    histories: Histories = field(default_factory=Histories)


@dataclass(frozen=True, slots=True)
class Away:
    """Updates fail."""

    since: float
    reason: str


@dataclass(frozen=True, slots=True)
class View:
    width: int = 80
    height: int = 24
    #: Seconds between two updates.
    interval: float = 1.0
    kind: str = MODELS
    tabs: Mapping[str, Tab] = field(default_factory=lambda: {MODELS: Tab(), WORKERS: Tab(), GATEWAYS: Tab()})
    mode: Mode = Mode.LIST
    #: The newest data, and those that a pause keeps on the screen.
    live: Data = field(default_factory=Data)
    paused: Data | None = None
    away: Away | None = None
    #: The line whose details are shown, and how far they or the help are scrolled.
    detailed: str = ""
    scroll: int = 0
    is_over: bool = False

    @property
    def data(self) -> Data:
        """What is on the screen."""
        return self.paused if self.paused is not None else self.live

    @property
    def tab(self) -> Tab:
        return self.tabs[self.kind]

    def lines(self) -> list[Line]:
        """The lines of the current list, filtered and in order."""
        sample = self.data.sample
        if sample is None:
            return []
        return ordered(matching(sample.lines.get(self.kind, ()), self.tab.filter), self.tab.sort, self.tab.descending)

    def notices(self) -> int:
        """Lines that notices take."""
        sample = self.data.sample
        known = len(sample.notices) if sample is not None else 0
        return min(MOST_NOTICES, known + (self.away is not None))

    def page(self) -> int:
        """Lines of the list that the screen has room for."""
        return max(1, self.height - _FRAME_LINES - self.notices())


def take_sample(view: View, sample: Sample) -> View:
    live = Data(sample, add_sample(view.live.histories, sample))
    return _settled(replace(view, live=live, away=None))


def take_failure(view: View, reason: str, at: float) -> View:
    """An update failed; the last sample stays."""
    live = replace(view.live, histories=add_sample(view.live.histories, None))
    since = view.away.since if view.away is not None else at
    return _settled(replace(view, live=live, away=Away(since, reason)))


def resize(view: View, width: int, height: int) -> View:
    return _settled(replace(view, width=width, height=height))


def press(view: View, key: str) -> View:
    """``key``: one character, or a name from ``keys``."""
    if view.mode is Mode.FILTER:
        return _settled(_press_in_filter(view, key))
    if key == "q":
        return end(view)
    if view.mode is not Mode.LIST:
        return _settled(_press_on_page(view, key))
    return _settled(_press_in_list(view, key))


def end(view: View) -> View:
    return replace(view, is_over=True)


def _press_in_list(view: View, key: str) -> View:
    lines = view.lines()
    if key in _MOVES and lines:
        return _select(view, lines, view.tab.place + _MOVES[key](view.page(), len(lines)))
    if key in _TABS:
        return replace(view, kind=KINDS[(KINDS.index(view.kind) + _TABS[key]) % len(KINDS)])
    if key in ("1", "2", "3"):
        return replace(view, kind=KINDS[int(key) - 1])
    if key == "/":
        return replace(view, mode=Mode.FILTER)
    if key in ("?", "h"):
        return replace(view, mode=Mode.HELP, scroll=0)
    if key in ("p", " "):
        return replace(view, paused=view.live if view.paused is None else None)
    if key == "enter" and lines:
        return replace(view, mode=Mode.DETAILS, detailed=view.tab.selected, scroll=0)
    if key == "escape":
        return _with_tab(view, replace(view.tab, filter=""))
    if key == "R":
        return _with_tab(view, replace(view.tab, descending=not view.tab.descending))
    sorting = next((each for each in COLUMNS[view.kind] if each.key == key), None)
    return view if sorting is None else _with_tab(view, _sorted_by(view.kind, view.tab, sorting.what))


def _sorted_by(kind: str, tab: Tab, what: str) -> Tab:
    """The same column again reverses the order. Texts begin with the first, figures with the highest."""
    descending = not tab.descending if tab.sort == what else not column(kind, what).is_text
    return replace(tab, sort=what, descending=descending)


def _press_in_filter(view: View, key: str) -> View:
    text = view.tab.filter
    if key == "enter":
        return replace(view, mode=Mode.LIST)
    if key == "escape":
        return _with_tab(replace(view, mode=Mode.LIST), replace(view.tab, filter=""))
    if key in ("up", "down"):
        return _press_in_list(replace(view, mode=Mode.LIST), key)
    if key == "backspace":
        text = text[:-1]
    elif key == "clear":
        text = ""
    elif len(key) == 1 and key.isprintable():
        text = (text + key)[:_LONGEST_FILTER]
    return _with_tab(view, replace(view.tab, filter=text))


def _press_on_page(view: View, key: str) -> View:
    """Help or details."""
    if key in ("escape", "enter", "backspace", "left", "?", "h"):
        return replace(view, mode=Mode.LIST, scroll=0)
    if key in ("p", " "):
        return replace(view, paused=view.live if view.paused is None else None)
    if key in _MOVES:
        # Drawing knows how long the page is, and shows its end if this is beyond; no page has more lines than this.
        return replace(view, scroll=min(max(0, view.scroll + _MOVES[key](view.page(), _LONGEST_PAGE)), _LONGEST_PAGE))
    return view


#: Lines of help or details that can be scrolled to.
_LONGEST_PAGE = 10_000
#: By key: how far it moves the selection, from the lines of a page and of the list.
_MOVES: Mapping[str, Callable[[int, int], int]] = {
    "up": lambda page, count: -1,
    "k": lambda page, count: -1,
    "down": lambda page, count: 1,
    "j": lambda page, count: 1,
    "page up": lambda page, count: -page,
    "page down": lambda page, count: page,
    "home": lambda page, count: -count,
    "g": lambda page, count: -count,
    "end": lambda page, count: count,
    "G": lambda page, count: count,
}
_TABS = {"tab": 1, "right": 1, "back tab": -1, "left": -1}


def _with_tab(view: View, tab: Tab) -> View:
    return replace(view, tabs={**view.tabs, view.kind: tab})


def _select(view: View, lines: list[Line], place: int) -> View:
    place = min(max(0, place), len(lines) - 1)
    return _with_tab(view, replace(view.tab, selected=lines[place].name, place=place))


def _settled(view: View) -> View:
    """The selection is on a line that is shown: on the same line by name, or on what took its place."""
    lines, tab = view.lines(), view.tab
    if not lines:
        return _with_tab(view, replace(tab, offset=0))
    place = next((index for index, line in enumerate(lines) if line.name == tab.selected), None)
    view = _select(view, lines, tab.place if place is None else place)
    page, tab = view.page(), view.tab
    lowest = max(0, tab.place - page + 1)
    offset = min(max(tab.offset, lowest), tab.place, max(0, len(lines) - page))
    return _with_tab(view, replace(tab, offset=offset))
