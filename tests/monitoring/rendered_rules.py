"""Rules of a sample fleet, and the names of metrics in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.monitoring.rendering import rules_document
from isochrone.monitoring.thresholds import Flags, thresholds

FLEET = """
name: plant
control: {listen: "127.0.0.1:8003", count: 2}
gateways: {gw: {listen: "127.0.0.1:8000", metrics_port: 9000, count: 2}}
pools: {cpu: {workers: 2, first_port: 8100}}
defaults: {slo: {deadline_ms: 200}}
models:
  detector: {version: 1, slo: {deadline_ms: 100}}
  tracker.v2: {version: 1}
"""


def fleet_of(text: str = FLEET) -> Fleet:
    return parse_fleet(text, "fleet.yaml", Path())


def rules_of(text: str = FLEET, flags: Flags | None = None) -> dict[str, Any]:
    return rules_document(thresholds(fleet_of(text), flags or Flags()), with_controllers=True)


def all_rules(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [rule for group in document["groups"] for rule in group["rules"]]


def alert(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (rule for rule in all_rules(document) if rule.get("alert") == f"Isochrone{name}")
    return found


def metrics_in(expression: str) -> set[str]:
    """Names of metrics that processes serve, without those that rules record."""
    # Texts in quotes are no names of metrics.
    return set(re.findall(r"\b((?:isochrone|nv|process)_\w+)", re.sub(r'"[^"]*"', '""', expression)))


def recorded_in(expression: str) -> set[str]:
    return set(re.findall(r"\bisochrone:[\w:]+", expression))
