"""Makes Grafana's JSON of a dashboard, with Grafana's own package: field names and layout are its concern.

Nothing else imports that package, which is an extra.
"""

from __future__ import annotations

import json
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from isochrone.monitoring.dashboards.layout import FLEETS, Dashboard, Kind, Panel, Query, Variable

_AnyPanel = timeseries.Panel | stat.Panel | heatmap.Panel | table.Panel
_TAG: Final = "isochrone"
#: The chosen data source, of which there is a variable.
_SOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_FORMATS: Final = {"heatmap": PromQueryFormat.HEATMAP, "table": PromQueryFormat.TABLE}
#: Names of queries, which Grafana calls A, B and so on.
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def dashboard_text(described: Dashboard) -> str:
    """The file of a dashboard: the same dashboard gives the same bytes."""
    built = (
        dashboard.Dashboard(described.title)
        .uid(described.uid)
        .description(described.text)
        .tags([_TAG])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(
            dashboard.DashboardLink("Isochrone")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([_TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("data source").type("prometheus"))
    )
    for variable in (FLEETS, *described.variables):
        built.with_variable(_variable(variable))
    identity = 0
    for row in described.rows:
        identity += 1
        built.with_row(dashboard.Row(row.title).id(identity))
        for panel in row.panels:
            identity += 1
            built.with_panel(_panel(panel, identity))
    return json.dumps(built.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _variable(described: Variable) -> dashboard.QueryVariable:
    found = (
        dashboard.QueryVariable(described.name)
        .label(described.name)
        .datasource(_SOURCE)
        .query({"query": described.query, "refId": described.name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    if described.many:
        found.multi(True).include_all(True).all_value(".*")
        found.current(models.VariableOption(selected=True, text=["All"], value=["$__all"]))
    return found


def _panel(described: Panel, identity: int) -> _AnyPanel:
    found = _kind(described.kind, described.unit)
    found.id(identity).title(described.title).datasource(_SOURCE).span(described.width).height(described.height)
    if described.text:
        found.description(described.text)
    found.unit(described.unit)
    for letter, query in zip(_LETTERS, described.queries, strict=False):
        found.with_target(_target(query, letter, described.kind))
    return found


def _kind(kind: Kind, unit: str) -> _AnyPanel:
    if kind == "number":
        last = common.ReduceDataOptions().calcs(["lastNotNull"])
        return stat.Panel().graph_mode(common_models.BigValueGraphMode.AREA).reduce_options(last)
    if kind == "table":
        return table.Panel().with_transformation(_columns())
    if kind == "heatmap":
        return heatmap.Panel().y_axis(heatmap.YAxisConfig().unit(unit)).show_legend().show_y_histogram()
    lines = timeseries.Panel().min(0).fill_opacity(10).show_points(common_models.VisibilityMode.NEVER)
    if kind == "stacked":
        lines.fill_opacity(40).stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    return lines


def _columns() -> models.DataTransformerConfig:
    """Labels as columns; the time of an instant query says nothing."""
    return models.DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}})


def _target(query: Query, letter: str, kind: Kind) -> prometheus.Dataquery:
    found = prometheus.Dataquery().expr(query.shown).ref_id(letter).datasource(_SOURCE)
    if query.legend:
        found.legend_format(query.legend)
    found.format(_FORMATS.get(kind, PromQueryFormat.TIME_SERIES))
    return found.instant() if kind == "table" else found.range()
