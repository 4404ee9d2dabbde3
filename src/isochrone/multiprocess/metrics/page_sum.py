"""Adds up metrics pages: Prometheus text or OpenMetrics, one page per process. Pure.

``gauge_rules`` decides how a family's samples combine. The counts of a process that ended stay in the sum
(``retired``): a sum that falls would look to Prometheus like a restart of everything. Of the exemplars of a
bucket, the newest is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.utils import floatToGoString

from isochrone.multiprocess.metrics.gauge_rules import grows, is_passing, rule
from isochrone.observe.metrics.page_formats import EXEMPLAR

_SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})? (\S+)')
_SAMPLE_WITH_EXEMPLAR = re.compile(r'([a-zA-Z_:][\w:]*)(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})? (\{[^{}]*\} \S+ \S+)$')
#: The label that distinguishes passing series.
_OWNER = re.compile(r'[{,]agent="((?:[^"\\]|\\.)*)"')
_EOF = "# EOF"
_LABEL = "process"
_TOTAL = "_total"


@dataclass(slots=True)
class Family:
    """One metric family of a page."""

    name: str
    kind: str = "untyped"
    #: The lines of # HELP, # TYPE and # UNIT.
    comments: list[str] = field(default_factory=list)
    #: Name and labels → value.
    samples: dict[tuple[str, str], float] = field(default_factory=dict)
    #: Name and labels → exemplar, as OpenMetrics writes it behind the value.
    exemplars: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(slots=True)
class Page:
    families: dict[str, Family] = field(default_factory=dict)
    #: OpenMetrics pages end with a line of their own.
    is_open_metrics: bool = False


#: The samples of processes that ended: (name, labels) → value.
Counts = dict[tuple[str, str], float]


def parse(text: str) -> Page:
    page = Page()
    family = Family("")
    # Not splitlines: a label may hold any character but a line feed.
    for line in text.split("\n"):
        if line == _EOF:
            page.is_open_metrics = True
        elif line.startswith(EXEMPLAR):
            if match := _SAMPLE_WITH_EXEMPLAR.match(line, len(EXEMPLAR)):
                family.exemplars[match[1], match[2] or ""] = match[3]
        elif line.startswith("# "):
            _, word, name, *rest = line.split(" ", 3)
            if name != family.name:
                family = page.families.setdefault(name, Family(name))
            family.comments.append(line)
            if word == "TYPE" and rest:
                family.kind = rest[0]
        elif match := _SAMPLE.match(line):
            name, labels, value = match.groups()
            if not family.name or not name.startswith(family.name):
                family = page.families.setdefault(name, Family(name))
            family.samples[name, labels or ""] = float(value)
    return page


def add_up(pages: Mapping[int, Page], retired: Mapping[tuple[str, str], float] | None = None) -> Page:
    """One page from those of the processes, by their numbers."""
    total = Page(is_open_metrics=any(page.is_open_metrics for page in pages.values()))
    gathered: dict[str, dict[tuple[str, str], list[float]]] = {}
    exemplars: dict[str, dict[tuple[str, str], str]] = {}
    for number, page in pages.items():
        for name, family in page.families.items():
            total.families.setdefault(name, Family(name, family.kind, family.comments))
            of_name = exemplars.setdefault(name, {})
            for key, exemplar in family.exemplars.items():
                of_name[key] = max(exemplar, of_name.get(key, exemplar), key=_measured_at)
            values = gathered.setdefault(name, {})
            label = rule(name, family.kind) == "label"
            for (sample, labels), value in family.samples.items():
                values.setdefault((sample, _labelled(labels, number) if label else labels), []).append(value)
    left = dict(retired or {})
    for name, family in total.families.items():
        how = rule(name, family.kind)
        family.samples = {key: _combined(how, values) for key, values in gathered[name].items()}
        family.exemplars = exemplars[name]
        if grows(name, family.kind):
            for key in family.samples:
                family.samples[key] += left.pop(key, 0.0)
            # Of models that no process serves any more: their series ends with a process that still knew it.
    return total


def retire(page: Page, known: Mapping[tuple[str, str], float]) -> Counts:
    """The counts of ended processes, with those of one more."""
    counts = dict(known)
    for name, family in page.families.items():
        if grows(name, family.kind):
            for key, value in family.samples.items():
                counts[key] = counts.get(key, 0.0) + value
    return counts


def settle(before: Page, after: Page, known: Mapping[tuple[str, str], float]) -> Counts:
    """The counts of ended processes, with those of series that a living one has ended between two of its pages.

    Without them the sum over the processes would fall, where another process still has the series. A series that
    restarted is known by a value that fell; then all that its owner had before is final.
    """
    newer = {key: value for family in after.families.values() for key, value in family.samples.items()}
    older = {
        key: value
        for name, family in before.families.items()
        if is_passing(name) and grows(name, family.kind)
        for key, value in family.samples.items()
    }
    ended = {_owner(labels) for (name, labels), value in older.items() if newer.get((name, labels), -1.0) < value}
    counts = dict(known)
    for key, value in older.items():
        if _owner(key[1]) in ended:
            counts[key] = counts.get(key, 0.0) + value
    return counts


def without_ended(pages: Iterable[Page], counts: Counts) -> Counts:
    """Without the counts of passing series that no process has any more: of those there may be any number."""
    living = {
        key for page in pages for name, family in page.families.items() if is_passing(name) for key in family.samples
    }
    return {key: value for key, value in counts.items() if not is_passing(key[0]) or key in living}


def render(page: Page, more: Iterable[str] = ()) -> str:
    """The page as text; ``more`` are lines of further families."""
    lines: list[str] = []
    for family in page.families.values():
        lines += family.comments
        shown = family.exemplars if page.is_open_metrics else {}
        for key, value in family.samples.items():
            exemplar = f" # {shown[key]}" if key in shown else ""
            lines.append(f"{key[0]}{key[1]} {_number(value)}{exemplar}")
    lines += more
    if page.is_open_metrics:
        lines.append(_EOF)
    return "\n".join(lines) + "\n"


def as_open_metrics(page: Page) -> Page:
    """A page of plain Prometheus text in OpenMetrics' terms.

    Times of creation, which are families of their own in plain text and samples of others here, are left out.
    """
    converted = Page(is_open_metrics=True)
    for name, family in page.families.items():
        base = name.removesuffix("_created")
        if base != name and (base in page.families or base + _TOTAL in page.families):
            continue
        kind = {"untyped": "unknown"}.get(family.kind, family.kind)
        if kind == "counter":
            # The family is named without the suffix that its samples must have.
            if not name.endswith(_TOTAL):
                kind = "unknown"
            name = name.removesuffix(_TOTAL)
        text = next(
            (line.split(" ", 3)[3] for line in family.comments if line.startswith(f"# HELP {family.name} ")), ""
        )
        text = text.replace('"', '\\"')
        comments = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        converted.families[name] = Family(name, kind, comments, family.samples, family.exemplars)
    return converted


def _combined(how: str, values: list[float]) -> float:
    match how:
        case "largest":
            return max(values)
        case "smallest":
            return min(values)
        case "mean":
            return sum(values) / len(values)
        case _:
            return sum(values)


def _measured_at(exemplar: str) -> float:
    return float(exemplar.rpartition(" ")[2])


def _owner(labels: str) -> str:
    found = _OWNER.search(labels)
    return found[1] if found is not None else ""


def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _labelled(labels: str, number: int) -> str:
    own = f'{_LABEL}="{number}"'
    return f"{labels[:-1]},{own}}}" if labels not in ("", "{}") else f"{{{own}}}"
