"""The rules of Prometheus as records, and the pieces of PromQL that all of them share. Pure.

Expressions contain ``FLEET`` where the matcher of the fleet belongs, as in ``up{FLEET, role="worker"}``: one Prometheus
may watch several fleets, and the limits of one must not apply to the others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Severity = Literal["critical", "warning", "info"]

#: What every alert's name begins with.
PREFIX: Final = "Isochrone"
#: Stands for the matcher of the fleet in an expression.
FLEET: Final = "FLEET"
#: Not in the escaped name of a model.
_PLACE: Final = re.compile(rf"(?<!\\)\{{{FLEET}\b")
#: Characters that mean something in a regular expression or in a text of PromQL.
_MEANT: Final = re.compile(r"[.+*?()|\[\]{}^$]")


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """A series that Prometheus computes from others."""

    name: str
    expression: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A condition that somebody must learn of."""

    #: In CamelCase, without ``PREFIX``.
    name: str
    expression: str
    #: Seconds that the expression must hold.
    holds: float
    severity: Severity
    #: One line: what is wrong with what.
    summary: str
    #: The figures, and what follows from them. With Prometheus' templates.
    description: str
    #: Whether it reads the metrics of controllers: a server without a fleet has none.
    needs_controllers: bool = False

    @property
    def page(self) -> str:
        """The name of its runbook: ``LatencyOverSlo`` has ``latency-over-slo``."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.name).lower()


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that are evaluated one after the other, at the same times."""

    name: str
    rules: tuple[RecordingRule | AlertRule, ...]
    #: Seconds between two evaluations; 0: as the Prometheus server is configured.
    interval: float = 0.0


def document(group: RuleGroup, fleet: str, runbooks: str) -> dict[str, Any]:
    """As Prometheus reads it. ``runbooks``: the URL of the directory of the runbooks."""
    found: dict[str, Any] = {"name": f"isochrone-{fleet}-{group.name}"}
    if group.interval:
        found["interval"] = duration(group.interval)
    found["rules"] = [
        _recording(rule, fleet) if isinstance(rule, RecordingRule) else _alert(rule, fleet, runbooks)
        for rule in group.rules
    ]
    return found


def _recording(rule: RecordingRule, fleet: str) -> dict[str, Any]:
    found: dict[str, Any] = {"record": rule.name, "expr": in_fleet(rule.expression, fleet)}
    return {**found, "labels": dict(rule.labels)} if rule.labels else found


def _alert(rule: AlertRule, fleet: str, runbooks: str) -> dict[str, Any]:
    held = {"for": duration(rule.holds)} if rule.holds else {}
    return {
        "alert": PREFIX + rule.name,
        "expr": in_fleet(rule.expression, fleet),
        **held,
        "labels": {"severity": rule.severity},
        "annotations": {
            "summary": rule.summary,
            "description": rule.description,
            "runbook_url": f"{runbooks.rstrip('/')}/{rule.page}.md",
        },
    }


def in_fleet(expression: str, fleet: str) -> str:
    """The expression for one fleet."""
    return _PLACE.sub(f'{{fleet="{fleet}"', expression)


def duration(seconds: float) -> str:
    """As Prometheus writes it: 90 is ``1m30s``."""
    left, text = round(seconds), ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def figure(value: float) -> str:
    """A number in an expression: without an exponent, and without digits that say nothing."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def one_of(models: Collection[str]) -> str:
    """A regular expression in quotes that matches these names only."""
    escaped = "|".join(_MEANT.sub(r"\\\\\g<0>", name) for name in sorted(models)).replace('"', r"\"")
    return f'"{escaped}"'
