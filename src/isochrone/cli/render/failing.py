"""Errors of the commands that render: one line each on standard error, and exit status 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from isochrone.errors import IsochroneError
from isochrone.settings.problems import SettingsError


@contextmanager
def failing() -> Iterator[None]:
    try:
        yield
    except SettingsError as error:
        for problem in error.errors:
            typer.secho(f"isochrone render: {problem}", fg="red", err=True)
        raise typer.Exit(1) from None
    except IsochroneError as error:
        typer.secho(f"isochrone render: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
