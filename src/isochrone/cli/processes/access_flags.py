"""Flags of access control, for workers, gateways and controllers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AccessOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Who may do what: a file with tokens and roles, followed as it changes. See docs/access.md.",
        show_default="off: every caller may do everything",
    ),
]
UpstreamTokenOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File with the token that the gateway's own calls to workers carry."),
]
