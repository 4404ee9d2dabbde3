"""The display of a rollout: one picture for a terminal, one line per change without one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from isochrone.cli.console import clock, span, table
from isochrone.control.state.rollout_records import (
    ABORTED,
    ABORTING,
    CANARY,
    COMPARING,
    DONE,
    RolloutRecord,
    VerdictRecord,
)

#: Descriptions of the states, in their order.
PHASES = {
    "pending": "waiting for the leading controller",
    "preparing": "workers load the new version beside the old; in a pool of several, one goes first",
    "comparing": "outputs of both versions on live requests",
    "canary": "the new version for a part of the traffic",
    "switching": "the commit",
    "draining": "committed; last requests of the old version",
    "done": "served everywhere",
    "aborting": "taking the new version away",
    "aborted": "nothing of it is visible",
}
#: The descriptions that differ for a rollback to the previous version, which workers keep loaded.
_BACK = {
    "preparing": "every worker has the previous version, kept loaded for this",
    "draining": "committed; last requests of the version that was taken back",
    "done": "the previous version is served everywhere",
    "aborting": "staying with the version that is served",
    "aborted": "the version that was served stays",
}
#: The descriptions that differ if no version was served before.
_FIRST = {"preparing": "workers load it"}
#: States before any worker makes progress.
_BEFORE_PROGRESS = ("pending", "preparing")
#: Subject of a verdict that is not on a step of the canary.
_COMPARISON = "comparison"
_MARKS = {"waiting": "·", "loading": "…", "ready": "✓", "failed": "✗"}
_STYLES = {"waiting": "dim", "loading": "cyan", "ready": "green", "failed": "red"}


def phase_text(record: RolloutRecord, state: str) -> str:
    """The description of a state of this rollout."""
    special = _BACK if record.kind == "rollback" else _FIRST if record.kind == "first" else {}
    return special.get(state, PHASES.get(state, ""))


def verdict_text(verdict: VerdictRecord) -> str:
    return f"{verdict.of}: {'passed' if verdict.passed else 'failed'}{_detail(verdict.reason)}"


def changes_text(record: RolloutRecord) -> str:
    return ", ".join(
        f"{model} {change.before or 'none'} → {change.version}" for model, change in record.changes.items()
    )


def outcome_text(record: RolloutRecord) -> str:
    """One sentence: the outcome of a rollout, or its state."""
    if record.state == ABORTED:
        return f"rollout {record.identity} was {_aborted(record)}"
    if record.state == DONE:
        took = span(record.since.get(DONE, record.at) - record.at)
        return f"rollout {record.identity} is done in {took}: {changes_text(record)} (epoch {record.epoch})"
    return f"rollout {record.identity} is {record.state}: {changes_text(record)}"


def new_lines(before: RolloutRecord | None, after: RolloutRecord) -> list[str]:
    """The changes between two records of a rollout, a line each."""
    lines = []
    if before is None:
        rules = [after.cutover, *(["canary"] if after.canary else []), *(["compare"] if after.compare else [])]
        lines.append(f"{after.identity} {after.kind}: {changes_text(after)} ({', '.join(rules)}) by {after.by or '?'}")
    known = set() if before is None else set(before.since)
    entered = [
        (state, f"{after.identity} {state} at {span(at - after.at)}{_detail(phase_text(after, state))}")
        for state, at in _shown(after)
        if state not in known
    ]
    seen = before.workers if before is not None else {}
    judged = after.verdicts[len(before.verdicts) if before is not None else 0 :]
    # In the order of events: a state ends when its workers are ready or its verdict is known.
    lines += [line for state, line in entered if state in _BEFORE_PROGRESS]
    for name, progress in sorted(after.workers.items()):
        if name not in seen or seen[name] != progress:
            lines.append(f"{after.identity} worker {name} {progress.state}{_detail(progress.detail)}")
    lines += [line for state, line in entered if state == COMPARING]
    lines += [f"{after.identity} {verdict_text(verdict)}" for verdict in judged if verdict.of == _COMPARISON]
    lines += [line for state, line in entered if state == CANARY or _is_step(state)]
    lines += [f"{after.identity} {verdict_text(verdict)}" for verdict in judged if verdict.of != _COMPARISON]
    shown = (*_BEFORE_PROGRESS, COMPARING, CANARY)
    lines += [line for state, line in entered if state not in shown and not _is_step(state)]
    if after.note and (before is None or (before.note, before.step) != (after.note, after.step)):
        lines.append(f"{after.identity} {_step(after)}{after.note}")
    if after.is_over and not (before is not None and before.is_over):
        lines.append(outcome_text(after))
    return lines


def picture(record: RolloutRecord, now: float) -> RenderableType:
    """Phases with their times, the workers, the canary's figures, and the reason when it was aborted."""
    head = Text.assemble((f"{record.identity} ", "bold"), f"{changes_text(record)}  ", (_rules(record), "dim"))
    parts: list[RenderableType] = [head, _phases(record, now)]
    if record.workers:
        parts.append(_workers(record))
    parts += [
        Text(f"{model} {change.version} is signed by {change.signed_by}")
        for model, change in record.changes.items()
        if change.signed_by
    ]
    parts += [Text(verdict_text(each), style="green" if each.passed else "red") for each in record.verdicts]
    if record.note:
        parts.append(Text(f"{_step(record)}{record.note}", style="cyan"))
    if record.state in (ABORTED, ABORTING) and (record.reason or record.abort_asked):
        parts.append(Text(_aborted(record), style="red"))
    elif record.abort_asked:
        parts.append(Text(f"abort asked: {record.abort_asked}", style="yellow"))
    return Group(*parts)


def listing(records: Sequence[RolloutRecord]) -> Table:
    made = table("rollouts", "id", "started", "kind", "state", "changes", "by", "reason")
    for record in records:
        state = Text(record.state, style={DONE: "green", ABORTED: "red"}.get(record.state, "cyan"))
        cells = (clock(record.at), record.kind, state, escape(changes_text(record)), escape(record.by))
        made.add_row(record.identity, *cells, escape(record.reason or record.note))
    return made


def _rules(record: RolloutRecord) -> str:
    rules = [record.cutover]
    if record.canary is not None:
        rules.append("canary " + " ".join(f"{weight:.0%}" for weight in record.canary.weights))
    return f"({record.kind}, {', '.join(rules)}, by {record.by or '?'})"


def _phases(record: RolloutRecord, now: float) -> Table:
    made = Table(box=None, pad_edge=False, show_header=False)
    entered = _shown(record) or [(record.state, record.at)]
    for index, (state, at) in enumerate(entered):
        is_last = index == len(entered) - 1
        until = now if is_last and not record.is_over else entered[index + 1][1] if not is_last else at
        style = "red" if state in (ABORTED, ABORTING) else "green" if not is_last or state == DONE else "cyan"
        took = "" if is_last and record.is_over else span(until - at)
        made.add_row(Text(state, style=style), took, Text(phase_text(record, state), style="dim"))
    if not record.is_over and record.state not in (ABORTING,):
        for state in _ahead(record):
            made.add_row(Text(state, style="dim"), "", "")
    return made


def _shown(record: RolloutRecord) -> list[tuple[str, float]]:
    """The times of its states and of its canary's steps. Other stamps serve the controller's timeouts."""
    found = [(state, at) for state, at in record.since.items() if state in PHASES or _is_step(state)]
    return sorted(found, key=lambda item: item[1])


def _is_step(state: str) -> bool:
    return state.startswith("step ")


def _aborted(record: RolloutRecord) -> str:
    reason = record.reason or record.abort_asked or "no reason given"
    return f"aborted {reason}" if reason.startswith("by ") else f"aborted: {reason}"


def _ahead(record: RolloutRecord) -> list[str]:
    """The states still to come."""
    left_out = {COMPARING: record.compare is None, CANARY: record.canary is None}
    states = [state for state in PHASES if state not in (ABORTING, ABORTED) and not left_out.get(state)]
    return states[states.index(record.state) + 1 :] if record.state in states else []


def _workers(record: RolloutRecord) -> Table:
    made = Table(box=None, pad_edge=False, show_header=False)
    for name, progress in sorted(record.workers.items()):
        style = _STYLES.get(progress.state, "")
        mark = Text(f"  {_MARKS.get(progress.state, '?')}", style=style)
        made.add_row(mark, name, Text(progress.state, style=style), escape(progress.detail))
    return made


def _step(record: RolloutRecord) -> str:
    if record.state != CANARY or record.canary is None or record.step >= len(record.canary.weights):
        return ""
    if record.note.startswith("step "):
        return "canary "
    weights = record.canary.weights
    return f"canary step {record.step + 1} of {len(weights)} ({weights[record.step]:.0%}): "


def _detail(text: str) -> str:
    return f": {text}" if text else ""
