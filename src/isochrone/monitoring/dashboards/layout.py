"""Dashboards as records: rows of panels, and the queries in them. Pure.

Expressions contain ``FLEET`` where the matcher of the fleet belongs, as those of the rules do, and Grafana's own
variables: ``$model``, ``$worker``, ``$gateway`` and ``$__rate_interval``, the shortest window that has enough readings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from isochrone.monitoring.rules import in_fleet

#: ``stacked``: lines whose sum means something; ``number``: the last value, large; ``table``: a line per series.
Kind = Literal["lines", "stacked", "number", "heatmap", "table"]
#: What every uid begins with.
PREFIX: Final = "isochrone-"
#: The columns of a dashboard.
COLUMNS: Final = 24


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of PromQL."""

    expression: str
    #: Name of a series, with its labels in double braces.
    legend: str = ""
    #: Why a fleet that serves requests may have no such series; "": every one has it.
    may_lack: str = ""

    @property
    def shown(self) -> str:
        """As Grafana sends it, but for the variables."""
        return in_fleet(self.expression, "$fleet")


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    queries: tuple[Query, ...]
    #: Of Grafana's units: s, bytes, reqps, percentunit; short: a plain number.
    unit: str = "short"
    kind: Kind = "lines"
    #: What a reader must know to judge it.
    text: str = ""
    width: int = 8
    height: int = 8


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a dashboard: the values of a label."""

    name: str
    #: The series whose label it is, and the label.
    series: str
    label: str
    #: Several, or all, can be chosen.
    many: bool = True

    @property
    def query(self) -> str:
        return f"label_values({in_fleet(self.series, '$fleet')}, {self.label})"


@dataclass(frozen=True, slots=True)
class Dashboard:
    #: Without ``PREFIX``.
    name: str
    title: str
    text: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()

    @property
    def uid(self) -> str:
        return PREFIX + self.name

    @property
    def panels(self) -> Iterator[Panel]:
        return (panel for row in self.rows for panel in row.panels)


FLEETS: Final = Variable("fleet", 'up{role=~"worker|gateway|controller"}', "fleet", many=False)
MODELS: Final = Variable("model", '{FLEET, __name__=~"isochrone_model_info|isochrone_gateway_requests_total"}', "model")
WORKERS: Final = Variable("worker", 'up{FLEET, role="worker"}', "name")
GATEWAYS: Final = Variable("gateway", 'up{FLEET, role="gateway"}', "name")


def number(title: str, expression: str, unit: str = "short", text: str = "", may_lack: str = "") -> Panel:
    """A large figure, six in a row."""
    return Panel(title, (Query(expression, may_lack=may_lack),), unit, "number", text, width=4, height=4)


def quantile(share: float, labels: str, histogram: str, matchers: str) -> str:
    """Of a histogram, by labels. ``matchers``: after the fleet's, with a comma in front."""
    buckets = f"rate({histogram}_bucket{{FLEET{matchers}}}[$__rate_interval])"
    by = f"{labels}, le" if labels else "le"
    return f"histogram_quantile({share:g}, sum by ({by}) ({buckets}))"


def per_second(labels: str, counter: str, matchers: str) -> str:
    return f"sum by ({labels}) (rate({counter}{{FLEET{matchers}}}[$__rate_interval]))"
