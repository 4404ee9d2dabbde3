"""Flags of the flight recorder, for workers and gateways."""

from __future__ import annotations

from typing import Annotated

import typer

from isochrone.observe.flights.settings import DEFAULT_REQUESTS, read_recorder

__all__ = ["DEFAULT_RECORDER", "DumpOption", "RecorderOption", "read_recorder"]

DEFAULT_RECORDER = str(DEFAULT_REQUESTS)
RecorderOption = Annotated[
    str,
    typer.Option(
        metavar="off|N", help="The last N requests are kept in memory, so that isochrone why can explain one of them."
    ),
]
DumpOption = Annotated[
    str,
    typer.Option(
        metavar="DIRECTORY",
        help="Append requests that miss their deadline to a file there, for isochrone why --file.",
        show_default="off",
    ),
]
