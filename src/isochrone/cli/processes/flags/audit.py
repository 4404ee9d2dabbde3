"""Flags of the audit log, which workers, gateways and controllers share."""

from __future__ import annotations

from typing import Annotated

import typer

AuditOption = Annotated[
    str,
    typer.Option(
        metavar="DIRECTORY",
        help="Record who changes what in a log under this directory; a change that cannot be recorded is refused.",
        show_default="off",
    ),
]
AuditRequestsOption = Annotated[
    bool,
    typer.Option(
        "--audit-requests/--no-audit-requests",
        help="With --audit: also record which agent calls which model when; never the payload. While the log cannot be"
        " written, requests are refused.",
    ),
]
AuditKeyOption = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="With --audit: the key that seals the log, 16 bytes or more; without it, somebody who may write the"
        " directory can rewrite the log.",
        show_default="none",
    ),
]
AuditKeepOption = Annotated[
    float, typer.Option(metavar="DAYS", help="With --audit: delete what is older; 0: keep all.", min=0)
]
AuditRedactOption = Annotated[
    str,
    typer.Option(
        metavar="RULES",
        help="With --audit: personal data as FIELD=hash|drop|truncate,...; fields: name, address, agent, request_id,"
        " user, reason.",
        show_default="none",
    ),
]
