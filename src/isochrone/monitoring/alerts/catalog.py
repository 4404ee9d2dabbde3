"""All alerts, in groups."""

from __future__ import annotations

from isochrone.monitoring.alerts.load import load_alerts
from isochrone.monitoring.alerts.processes import process_alerts
from isochrone.monitoring.alerts.slos import slo_alerts
from isochrone.monitoring.alerts.versions import version_alerts
from isochrone.monitoring.rules import AlertRule, RuleGroup
from isochrone.monitoring.thresholds import Thresholds


def alert_groups(limits: Thresholds, *, with_controllers: bool) -> tuple[RuleGroup, ...]:
    """``with_controllers``: whether the metrics of controllers are read."""
    groups = {
        "slo": slo_alerts(limits),
        "load": load_alerts(limits),
        "processes": process_alerts(with_controllers=with_controllers),
        "versions": version_alerts(limits),
    }
    return tuple(
        RuleGroup(name, tuple(each for each in alerts if with_controllers or not each.needs_controllers))
        for name, alerts in groups.items()
    )


def all_alerts() -> tuple[AlertRule, ...]:
    """Every alert, with the default limits."""
    groups = alert_groups(Thresholds(), with_controllers=True)
    return tuple(rule for group in groups for rule in group.rules if isinstance(rule, AlertRule))
