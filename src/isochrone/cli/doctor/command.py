"""``isochrone doctor``: find settings of the kernel and the machine that cost latency, and change the safe ones."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from isochrone.cli.console import counted
from isochrone.cli.doctor.report import changes_text, comparison_text, examination_text, report_json
from isochrone.doctor.checks.catalog import CHECKS
from isochrone.doctor.examination import Examination, examine
from isochrone.doctor.findings import Change
from isochrone.doctor.fixing import Outcome, apply, planned, unwritable
from isochrone.doctor.reading.tree import Tree
from isochrone.suggestions import suggestion

EPILOG = """
\b
Examples:
  isochrone doctor
  isochrone doctor --json
  isochrone doctor --only huge_pages --only swap
  sudo "$(command -v isochrone)" doctor --fix
  sudo "$(command -v isochrone)" doctor --fix --only somaxconn --yes

Takes a few seconds, in which it measures wake-ups, timers and round trips over loopback. Without --fix it changes
nothing. With --fix it shows what it would run and how to undo it, asks, changes the running system only (a reboot
undoes it), and measures again. sudo gets the whole path, since it does not look into virtual environments.

The exit status is 0 if no setting costs latency, 1 if one does, and 2 if the command fails or a change is not made.
"""

#: A wrong word, no permission, no consent, or a change that failed.
_FAILED = 2
#: With its path: sudo has a PATH of its own, without that of a virtual environment.
_AS_ROOT = 'sudo "$(command -v isochrone)" doctor --fix'

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Change the settings that are safe to change; asks first.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Agree to the changes of --fix without being asked.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Run this check only; may be repeated.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure the effects, or only read settings and counters.")
    ] = True,
    root: Annotated[
        Path,
        typer.Option(
            metavar="DIRECTORY",
            exists=True,
            file_okay=False,
            help="Where /proc and /sys are, such as a host's root that a container has mounted.",
        ),
    ] = Path("/"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; --fix then needs --yes.")] = False,
) -> None:
    """Find settings of this machine that cost latency; show what each costs here and how to change it."""
    _check_names(only or [])
    if yes and not fix:
        _fail("--yes: expected --fix with it; nothing was changed")
    if fix and as_json and not yes:
        _fail("--fix with --json: expected --yes, since nobody can be asked")
    before = _examine(root, only, measure)
    if not fix:
        typer.echo(report_json(before) if as_json else examination_text(before))
        raise typer.Exit(1 if before.costs_latency else 0)
    if not as_json:
        typer.echo(examination_text(before))
    changes = planned(before.findings)
    outcomes: tuple[Outcome, ...] = ()
    after = before
    if changes:
        _check_permission(changes, root)
        if not as_json:
            typer.echo(f"\n{changes_text(changes)}")
        if not yes:
            _ask(len(changes))
        outcomes = apply(changes, root)
        after = _examine(root, only, measure)
    if as_json:
        typer.echo(report_json(before, outcomes, after))
    else:
        typer.echo(f"\n{comparison_text(before, outcomes, after)}")
    if any(outcome.error for outcome in outcomes):
        raise typer.Exit(_FAILED)
    raise typer.Exit(1 if after.costs_latency else 0)


def _examine(root: Path, only: list[str] | None, measure: bool) -> Examination:
    found = examine(Tree(root), _report, measuring=measure)
    if not only:
        return found
    return replace(found, findings=tuple(each for each in found.findings if each.check in only))


def _report(line: str) -> None:
    """Progress, for a person who waits."""
    if sys.stderr.isatty():
        typer.secho(f"{line} …", fg="bright_black", err=True)


def _check_names(names: list[str]) -> None:
    known = [check.__name__ for check in CHECKS]
    for name in names:
        if name not in known:
            _fail(f"--only: expected {suggestion(name, known, 'check')}, given '{name}'")


def _check_permission(changes: tuple[Change, ...], root: Path) -> None:
    refused = unwritable(changes, root)
    if refused:
        paths = ", ".join(str(root / change.path) for change in refused)
        who = "root" if os.geteuid() == 0 else f"a user who is not root; run {_AS_ROOT}"
        _fail(f"--fix: expected permission to write {paths}, given {who}; nothing was changed")


def _ask(number: int) -> None:
    try:
        agreed = typer.confirm(f"Make {counted(number, 'change')}?")
    except typer.Abort:
        agreed = False
    if not agreed:
        _fail("nothing was changed")


def _fail(message: str) -> NoReturn:
    typer.secho(f"isochrone doctor: {message}", fg="red", err=True)
    raise typer.Exit(_FAILED)
