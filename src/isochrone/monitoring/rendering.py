"""The files for a Prometheus server: its configuration, and one file of rules. Pure."""

from __future__ import annotations

from typing import Any, Final

from isochrone.monitoring.alerts.catalog import alert_groups
from isochrone.monitoring.recording import recording_groups
from isochrone.monitoring.rules import document
from isochrone.monitoring.scraping import INTERVAL
from isochrone.monitoring.thresholds import Thresholds

CONFIGURATION: Final = "prometheus.yml"
#: Where the runbooks are, unless a flag names another place.
RUNBOOKS: Final = "https://github.com/isochrone-serving/isochrone/blob/main/docs/runbooks"


def rules_document(limits: Thresholds, *, with_controllers: bool, runbooks: str = RUNBOOKS) -> dict[str, Any]:
    groups = (
        *recording_groups(limits, with_controllers=with_controllers),
        *alert_groups(limits, with_controllers=with_controllers),
    )
    return {"groups": [document(group, limits.fleet, runbooks) for group in groups]}


def rules_file(fleet: str) -> str:
    """The name of the file of rules."""
    return f"isochrone-{fleet}.rules.yaml"


def configuration(fleet: str, scrape_configs: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole configuration, to start a Prometheus with or to copy from."""
    return {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": [rules_file(fleet)],
        "scrape_configs": scrape_configs,
    }
