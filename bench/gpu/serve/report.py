"""The table of ``bench.gpu.serve``: raw, served and their ratio, round by round; and the promises beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.gpu.figures import markdown, ratios, spread
from bench.gpu.load.regions import BYTES
from bench.gpu.raw.raw_model import CALL, COPIES, REPLAY
from bench.gpu.serve.cells import Cell
from bench.gpu.serve.stages import STAGES

#: Of raw replay at saturation; and what a served call may take beyond the raw one.
SHARED_MEMORY_SHARE, BYTES_SHARE, ADDED_MS = 0.90, 0.75, 0.25
#: A server cannot be faster than its model: beyond noise, the raw figure is wrong, and so is every ratio to it.
IMPLAUSIBLE_SHARE, IMPLAUSIBLE_ADDED_MS = 1.05, -0.02

Figures = Sequence[dict[str, Any]]


def _raw(figures: Figures, model: str, mode: str, batch: int, key: str) -> dict[int, float]:
    """By round."""
    return {
        each["round"]: each[key]
        for each in figures
        if each["kind"] == "raw"
        and (each["model"], each["mode"], each["batch"]) == (model, mode, batch)
        and key in each
    }


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _ms(value: float) -> str:
    return f"{value:.3f}"


def report(figures: Figures, largest: int, device: str) -> tuple[str, list[str]]:
    """The text, and the names of the cells that failed. Promises are of a GPU: a run on a CPU states none."""
    served = [each for each in figures if each["kind"] == "served"]
    failed = list(dict.fromkeys(each["cell"] for each in served if each["problem"]))
    parts = [_saturation(figures, served, largest), _one_in_flight(figures, served)]
    promises = _promises(figures, served, largest)
    parts.append(promises if device != "cpu" else "On a CPU: shows only that the program works; no promise is judged.")
    problems = {each["cell"]: f"FAILED {each['cell']}: {each['problem']}" for each in served if each["problem"]}
    parts.append("\n".join(problems.values()))
    return "\n\n".join(filter(None, parts)), failed


def unmeasured(cells: Sequence[Cell], figures: Figures) -> list[str]:
    """The names of the cells with a promise that have no figure: a run that left them out has judged too little."""
    measured = {each["cell"] for each in figures if each["kind"] == "served"}
    return [cell.name for cell in cells if cell.is_promised and cell.name not in measured]


def _cell(figure: dict[str, Any]) -> Cell:
    return Cell(figure["model"], figure["variant"], figure["transport"], figure["in_flight"])


def _groups(served: Figures, single: bool) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    good = [each for each in served if not each["problem"] and (each["in_flight"] == 1) == single]
    names = dict.fromkeys(each["cell"] for each in good)
    return [(own[0], own) for name in names if (own := [each for each in good if each["cell"] == name])]


def _share(figures: Figures, own: Figures, mode: str, largest: int) -> list[float]:
    base = _raw(figures, own[0]["model"], mode, largest, "rows_per_second")
    return ratios([each["requests_per_second"] for each in own], [base.get(each["round"]) for each in own])


def _saturation(figures: Figures, served: Figures, largest: int) -> str:
    rows = []
    for about, own in _groups(served, single=False):
        bases = [_raw(figures, about["model"], mode, largest, "rows_per_second") for mode in (REPLAY, COPIES)]
        rows.append(
            (
                f"{about['model']} {about['variant']} {about['transport']} ×{about['in_flight']}",
                *(spread(base.values()) for base in bases),
                spread(each["requests_per_second"] for each in own),
                *(spread(_share(figures, own, mode, largest), _percent) for mode in (REPLAY, COPIES)),
                spread((each["p99_us"] / 1e3 for each in own), "{:.1f}".format),
                spread((each["server_cores"] for each in own), "{:.1f}".format),
                spread((max(each["generator_cpu"]) for each in own), _percent),
            )
        )
    header = ("saturation", f"replay ×{largest} /s", f"with copies ×{largest} /s", "served /s", "of replay")
    header += ("of copies", "p99 ms", "server cores", "busiest generator")
    return markdown(header, rows) if rows else ""


def _added(figures: Figures, own: Figures) -> list[float]:
    """Milliseconds that a served call takes beyond the raw one, round by round."""
    base = _raw(figures, own[0]["model"], CALL, 1, "p50_us")
    return [(each["p50_us"] - base[each["round"]]) / 1e3 for each in own if each["round"] in base]


def _one_in_flight(figures: Figures, served: Figures) -> str:
    rows = []
    for about, own in _groups(served, single=True):
        base = _raw(figures, about["model"], CALL, 1, "p50_us")
        rows.append(
            (
                f"{about['model']} {about['variant']} {about['transport']}",
                spread((value / 1e3 for value in base.values()), _ms),
                spread((each["p50_us"] / 1e3 for each in own), _ms),
                spread(_added(figures, own), "{:+.3f}".format),
                spread((each["p99_us"] / 1e3 for each in own), _ms),
                *(spread((each["stages_us"].get(stage, 0.0) / 1e3 for each in own), _ms) for stage in STAGES),
            )
        )
    stages = (f"mean {stage} ms" for stage in STAGES)
    header = ("1 in flight", "raw call ms", "median ms", "added ms", "p99 ms", *stages)
    return markdown(header, rows) if rows else ""


def _verdict(met: bool, implausible: bool) -> str:
    if implausible:
        return "NOT JUDGED (faster than raw in a round: the raw figure is wrong)"
    return "MET" if met else "MISSED"


def _promises(figures: Figures, served: Figures, largest: int) -> str:
    """Each promise with the median of what was measured."""
    lines = []
    for about, own in _groups(served, single=False):
        if _cell(about).is_promised and (shares := sorted(_share(figures, own, REPLAY, largest))):
            promised = BYTES_SHARE if about["transport"] == BYTES else SHARED_MEMORY_SHARE
            middle = shares[len(shares) // 2]
            verdict = _verdict(middle >= promised, shares[-1] > IMPLAUSIBLE_SHARE)
            lines.append(f"{verdict}: {about['cell']}: {middle:.0%} of raw replay, promised {promised:.0%}")
    for about, own in _groups(served, single=True):
        if _cell(about).is_promised and (added := sorted(_added(figures, own))):
            middle = added[len(added) // 2]
            verdict = _verdict(middle <= ADDED_MS, added[0] < IMPLAUSIBLE_ADDED_MS)
            lines.append(f"{verdict}: {about['cell']}: {middle:+.3f} ms over the raw call, promised {ADDED_MS:+.2f}")
    return "\n".join(lines)
