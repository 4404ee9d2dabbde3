"""Errors of these commands: one sentence on standard error, and exit status 2; 1 is a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from isochrone.cli.console import plain
from isochrone.errors import IsochroneError

FAILED = 2


@contextmanager
def failing(command: str) -> Iterator[None]:
    try:
        yield
    except IsochroneError as error:
        typer.secho(plain(f"isochrone {command}: {error}"), fg="red", err=True)
        raise typer.Exit(FAILED) from None
