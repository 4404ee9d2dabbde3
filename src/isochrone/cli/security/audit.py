"""``isochrone audit``: show, verify and export audit logs. It reads files alone, and needs no running fleet."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from isochrone.cli.api_client import JsonOption, failing_as
from isochrone.cli.console import counted
from isochrone.errors import FlagError
from isochrone.secure.audit.keys import AuditKey, read_key
from isochrone.secure.audit.log import is_being_written
from isochrone.secure.audit.reading import logs_in, merged
from isochrone.secure.audit.records import Record
from isochrone.secure.audit.selecting import COLUMNS, Selection, read_since, row_of, sentence_of
from isochrone.secure.audit.verification import Verdict, verify

SHOW_EPILOG = """
\b
Examples:
  isochrone audit show /var/log/isochrone/audit
  isochrone audit show /var/log/isochrone/audit --since 2h --action rollout
  isochrone audit show /var/log/isochrone/audit/gw-1 --actor token:robots --model detector --json

Records of several processes are merged by time.
"""
VERIFY_EPILOG = """
\b
Examples:
  isochrone audit verify /var/log/isochrone/audit --key /etc/isochrone/audit.key
  isochrone audit verify /var/log/isochrone/audit/gw-1 --head 3f0c...
  isochrone audit verify /var/log/isochrone/audit --json

Reads the files alone. Without the key, somebody who may write the directory could have rewritten a log with its seal:
--head finds that, with a hash that this command printed earlier and that was kept elsewhere. The exit status is 1 if
anything is wrong.
"""
EXPORT_EPILOG = """
\b
Examples:
  isochrone audit export /var/log/isochrone/audit --format csv --since 30d > audit.csv
  isochrone audit export /var/log/isochrone/audit --format jsonl --action infer > requests.jsonl
"""

_FORMS = ("jsonl", "csv")

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Show, verify and export audit logs: who did what, and which agent called which model when.",
)

DirectoriesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="DIRECTORY...", help="The directory of --audit, or logs in it.", show_default=False),
]
SinceOption = Annotated[
    str,
    typer.Option(metavar="TIME", help="Only later ones: 15m, 2h, 7d ago, or a time in ISO 8601.", show_default="all"),
]
ActorOption = Annotated[str, typer.Option(help="Only of this actor or agent.", show_default="all")]
ModelOption = Annotated[str, typer.Option(help="Only of this model.", show_default="all")]
ActionOption = Annotated[
    str,
    typer.Option(help="Only this action, as rollout.start, or its group, as rollout.", show_default="all"),
]


@app.command(epilog=SHOW_EPILOG)
def show(
    directories: DirectoriesArgument,
    since: SinceOption = "",
    actor: ActorOption = "",
    model: ModelOption = "",
    action: ActionOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show records, the oldest first. With --json, one object per line, with the name of its log."""
    with failing_as("audit show"):
        for log, record in _selected(directories, since, actor, model, action):
            typer.echo(_json(log, record) if as_json else sentence_of(log, record))


@app.command(epilog=EXPORT_EPILOG)
def export(
    directories: DirectoriesArgument,
    form: Annotated[str, typer.Option("--format", metavar="jsonl|csv", help="JSON lines, or a table.")] = "jsonl",
    since: SinceOption = "",
    actor: ActorOption = "",
    model: ModelOption = "",
    action: ActionOption = "",
) -> None:
    """Write records to standard output, for other programs. The export itself proves nothing: keep the logs."""
    with failing_as("audit export"):
        if form not in _FORMS:
            raise FlagError("--format", " or ".join(_FORMS), form[:20])
        records = _selected(directories, since, actor, model, action)
        if form == "jsonl":
            for log, record in records:
                typer.echo(_json(log, record))
            return
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows(row_of(log, record) for log, record in records)


@app.command(name="verify", epilog=VERIFY_EPILOG)
def verify_logs(
    directories: DirectoriesArgument,
    key: Annotated[str, typer.Option(metavar="FILE", help="The key of --audit-key.", show_default="none")] = "",
    head: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[LOG=]HASH", help="A hash that the log must contain; LOG names it among several. May be repeated."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that logs are whole and unchanged."""
    with failing_as("audit verify"):
        logs = logs_in(directories)
        heads = _heads(head or [], [log.name for log in logs])
        secret = read_key(key, "--key")
        verdicts = [verify(log, secret, heads.get(log.name, frozenset()), is_being_written(log)) for log in logs]
    if as_json:
        typer.echo(json.dumps([msgspec.to_builtins(verdict) | {"intact": verdict.is_intact} for verdict in verdicts]))
    else:
        for verdict in verdicts:
            _print(verdict, secret)
    if not all(verdict.is_intact for verdict in verdicts):
        raise typer.Exit(1)


def _selected(directories: list[Path], since: str, actor: str, model: str, action: str) -> Iterator[tuple[str, Record]]:
    selection = Selection(read_since(since, time.time_ns()), actor, model, action)
    return ((log, record) for log, record in merged(logs_in(directories)) if selection.takes(record))


def _json(log: str, record: Record) -> str:
    return msgspec.json.encode({"log": log, **msgspec.structs.asdict(record)}).decode()


def _heads(given: list[str], logs: list[str]) -> dict[str, frozenset[str]]:
    """By log."""
    heads: dict[str, frozenset[str]] = {}
    for word in given:
        log, _, digest = word.rpartition("=")
        if not log and len(logs) > 1:
            raise FlagError("--head", f"LOG=HASH, since there are {len(logs)} logs", word)
        if log and log not in logs:
            raise FlagError("--head", f"one of the logs {', '.join(logs)}", log)
        name = log or logs[0]
        heads[name] = heads.get(name, frozenset()) | {digest.lower()}
    return heads


def _print(verdict: Verdict, key: AuditKey | None) -> None:
    for finding in verdict.findings:
        place = f"{verdict.log}/{finding.file}" + (f":{finding.line}" if finding.line else "")
        record = f" record {finding.record}:" if finding.record else ""
        typer.secho(f"{place}: {finding.kind}:{record} {finding.message}", fg="red")
    state = "intact" if verdict.is_intact else counted(len(verdict.findings), "finding")
    notes = [f"{counted(verdict.records, 'record')} in {counted(verdict.segments, 'segment')}"]
    if verdict.deleted:
        notes.append(f"{verdict.deleted} deleted by retention" if verdict.is_intact else f"{verdict.deleted} missing")
    if verdict.is_intact and verdict.is_sealed:
        notes.append("sealed")
    elif key is None:
        notes.append("the seal's key was not checked")
    if verdict.unsealed:
        notes.append(f"{verdict.unsealed} not sealed yet")
    typer.echo(f"{verdict.log}: {state}; {'; '.join(notes)}; head {verdict.sequence} {verdict.head}")
