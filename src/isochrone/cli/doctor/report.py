"""An examination as text and as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import wrap

import typer

from isochrone.cli.console import counted
from isochrone.doctor.examination import Examination
from isochrone.doctor.facts import Measured
from isochrone.doctor.findings import Change, Finding, Severity
from isochrone.doctor.fixing import Outcome, planned

_WIDTH = 110
#: Commands shown of one finding: a machine may have a hundred CPUs, with a governor each.
_COMMANDS = 4
_COLORS = {Severity.COSTS: "red", Severity.ADVICE: "yellow", Severity.UNKNOWN: "bright_black", Severity.OK: "green"}


def examination_text(examination: Examination) -> str:
    """The findings by severity; those that need nothing on one line each."""
    lines = list(_times(examination.measured))
    for severity in Severity:
        found = [finding for finding in examination.findings if finding.severity is severity]
        if found:
            lines += ["", typer.style(severity, fg=_COLORS[severity], bold=True)]
        for finding in found:
            lines += _short(finding) if severity is Severity.OK else _full(finding)
    return "\n".join([*lines, "", _summary(examination)]).lstrip("\n")


def _times(measured: Measured) -> Iterator[str]:
    if measured.wake_up is not None and measured.round_trip is not None:
        yield f"This machine: wake-up {measured.wake_up}, loopback round trip {measured.round_trip}"
    yield from (f"not measured: {reason}" for reason in measured.failed)


def _short(finding: Finding) -> list[str]:
    return [f"  {finding.check}: {finding.found}" + (f"; {finding.effect}" if finding.effect else "")]


def _full(finding: Finding) -> Iterator[str]:
    yield typer.style(f"  {finding.check}", bold=True)
    yield from _paragraph("", finding.found)
    yield from _paragraph("why: ", finding.reason)
    yield from _paragraph("here: ", finding.effect)
    for command in finding.commands[:_COMMANDS]:
        # On one line whatever its length, so that it can be copied.
        yield f"    fix: {command}"
    if len(finding.commands) > _COMMANDS:
        yield f"    fix: and {len(finding.commands) - _COMMANDS} more of the kind (all of them with --json)"
    if finding.severity is not Severity.UNKNOWN:
        yield f"    source: {finding.source}"


def _paragraph(label: str, text: str) -> list[str]:
    return wrap(text, _WIDTH, initial_indent=f"    {label}", subsequent_indent="      ") if text else []


def _summary(examination: Examination) -> str:
    counts = {severity: sum(finding.severity is severity for finding in examination.findings) for severity in Severity}
    text = ", ".join(f"{number} {severity}" for severity, number in counts.items())
    changes = len(planned(examination.findings))
    if changes:
        text += f". --fix can make {counted(changes, 'change')}"
    return text


def changes_text(changes: Sequence[Change]) -> str:
    """What would run, how to undo it, and how to keep it over a reboot."""
    lines = ["The running system would be changed as follows; a reboot undoes it."]
    for change in changes:
        lines += [f"  run:  {change.command}", f"  undo: {change.undo}", f"  keep: {change.persistent}", ""]
    return "\n".join(lines).rstrip()


def comparison_text(before: Examination, outcomes: Sequence[Outcome], after: Examination) -> str:
    """What was changed, and the effects of the changed settings before and after."""
    if not outcomes:
        by_hand = any(finding.commands for finding in before.findings if finding.severity is not Severity.OK)
        return "Nothing that --fix may change; see the fix lines above." if by_hand else "Nothing to change."
    lines = []
    for outcome in outcomes:
        failed = f"failed, {outcome.error}: " if outcome.error else "done: "
        lines.append(f"{failed}{outcome.change.command}")
    made = [outcome.change for outcome in outcomes if not outcome.error]
    changed = [finding.check for finding in before.findings if set(finding.changes) & set(made)]
    for check in changed:
        lines.append(typer.style(check, bold=True))
        for when, finding in (("before", before.finding(check)), ("after", after.finding(check))):
            effect = f"; {finding.effect}" if finding.effect else ""
            lines.append(f"  {when}: {finding.severity}: {finding.found}{effect}")
    lines += [f"undo: {change.undo}" for change in made]
    return "\n".join(lines)


def report_json(
    before: Examination, outcomes: Sequence[Outcome] | None = None, after: Examination | None = None
) -> str:
    document = _as_json(before)
    if outcomes is not None and after is not None:
        document["fix"] = {
            "outcomes": [{**_change(outcome.change), "error": outcome.error} for outcome in outcomes],
            "after": _as_json(after),
        }
    return json.dumps(document, indent=2)


def _as_json(examination: Examination) -> dict[str, object]:
    return {
        "costs_latency": examination.costs_latency,
        "measured": asdict(examination.measured),
        "findings": [_finding(finding) for finding in examination.findings],
    }


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "severity": finding.severity,
        "found": finding.found,
        "reason": finding.reason,
        "effect": finding.effect,
        "commands": finding.commands,
        "changes": [_change(change) for change in finding.changes],
        "source": finding.source,
    }


def _change(change: Change) -> dict[str, str]:
    return {**asdict(change), "command": change.command, "undo": change.undo, "persistent": change.persistent}
