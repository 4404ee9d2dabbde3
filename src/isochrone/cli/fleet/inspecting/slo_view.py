"""The display of error budgets as a table. Pure."""

from __future__ import annotations

from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from isochrone.cli.console import span, table
from isochrone.control.api.messages import ModelSlo, SloAnswer, SloWindow
from isochrone.control.figures.budget import BURNING, KEPT, NO_REQUESTS, NOT_COUNTED, SPENT

_STYLES = {KEPT: "green", NO_REQUESTS: "dim", NOT_COUNTED: "red", BURNING: "yellow", SPENT: "red"}
_NONE = "–"
_DAY = 86_400


def picture(found: SloAnswer) -> RenderableType:
    if not found.models:
        return Group(Text("no model is known yet; apply a fleet.yaml with: isochrone apply FILE", style="yellow"))
    columns = tuple(_length(window.seconds) for window in found.models[0].windows)
    made = table(
        "error budgets",
        *("model", "SLO", *(f"good {each}" for each in columns), *(f"burn {each}" for each in columns)),
        *("budget left", "spent in", "state"),
        right=("SLO", *(f"{word} {each}" for word in ("good", "burn") for each in columns), "budget left", "spent in"),
    )
    for model in found.models:
        made.add_row(
            model.model,
            f"{model.limit_ms:g} ms",
            *(_ratio(window) for window in model.windows),
            *(_burn(window) for window in model.windows),
            f"{model.left:.0%}" if model.state not in (NO_REQUESTS, NOT_COUNTED) else _NONE,
            _spent_in(model),
            Text(model.state, style=_STYLES.get(model.state, "")),
        )
    return Group(_head(found), made)


def _head(found: SloAnswer) -> Text:
    """``objective 99 %  history since 14:03, 12 min``."""
    if not found.since:
        history = "no history yet: this controller has just started"
    elif found.at - found.since >= _DAY:
        history = "history of 24 h"
    else:
        since = datetime.fromtimestamp(found.since).strftime("%H:%M")
        history = f"history since {since}, {_history_length(found.at - found.since)}"
    return Text.assemble(("objective ", "dim"), f"{found.objective * 100:g} %", (f"  {history}", "dim"))


def _history_length(seconds: int) -> str:
    minutes = seconds // 60
    if minutes < 60:
        return f"{minutes} min" if minutes else f"{seconds} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _length(seconds: int) -> str:
    return f"{seconds // 60} min" if seconds < 3600 else f"{seconds // 3600} h"


def _ratio(window: SloWindow) -> str:
    # Rounded down: 99.996 % of good requests are not 100 %.
    return _NONE if window.ratio is None else f"{int(window.ratio * 10_000 + 1e-6) / 100:.2f} %"


def _burn(window: SloWindow) -> Text:
    if window.ratio is None:
        return Text(_NONE)
    return Text(f"{window.burn:.1f}" if window.burn < 100 else f"{window.burn:.0f}", style="red" * (window.burn > 1))


def _spent_in(model: ModelSlo) -> str:
    if model.state == SPENT:
        return "now"
    return _NONE if model.spent_in_s is None else span(model.spent_in_s)
