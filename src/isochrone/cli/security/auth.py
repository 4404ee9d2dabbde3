"""``isochrone auth``: make API tokens, and explain what an access file allows."""

from __future__ import annotations

import time
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from isochrone.cli.api_client import JsonOption, print_json
from isochrone.cli.console import make_console, plain, table
from isochrone.errors import FlagError, IsochroneError
from isochrone.secure.access.document import load_access, moment
from isochrone.secure.access.identity import ANONYMOUS, Identity
from isochrone.secure.access.permissions import PERMISSIONS
from isochrone.secure.access.policy import Decision
from isochrone.secure.access.tokens import digest_of, new_token
from isochrone.suggestions import choice

#: Of identities, in the file.
_KINDS = ("token:", "group:", "oidc:", "certificate:")

TOKEN_EPILOG = """
\b
Examples:
  isochrone auth token robots --expires 2027-06-01
  isochrone auth token robots --group plant-a --json

The token is printed once and kept nowhere. The access file gets its digest: add what is printed under 'tokens'. To
replace a token, add the new one under another name, change its users, then set 'revoked: true' for the old one.
"""

CHECK_EPILOG = """
\b
Examples:
  isochrone auth check access.yaml token:robots inference --model vision-large --priority 2
  isochrone auth check access.yaml group:operators fleet-change
  isochrone auth check access.yaml anonymous health --json

The exit code is 0 if it is allowed and 1 if not. Workers, gateways and controllers decide by the same rules.
"""

PERMISSIONS_EPILOG = """
\b
Examples:
  isochrone auth permissions
  isochrone auth permissions --json

Roles of an access file give them. The roles caller, gateway, reader, operator and admin are there without being
written.
"""

#: Tokens that an error lists.
_NAMED = 12

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Make API tokens; explain who may do what.",
)


@app.command(epilog=TOKEN_EPILOG)
def token(
    name: Annotated[str, typer.Argument(help="Name of the caller.", show_default=False)],
    expires: Annotated[
        str, typer.Option(help="A date after which it is refused, as in 2027-06-01.", show_default="never")
    ] = "",
    group: Annotated[list[str] | None, typer.Option(help="A group of the caller. May be repeated.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token, and print it with its record for the access file."""
    try:
        moment(expires)
    except ValueError:
        _fail(FlagError("--expires", "a date as in 2027-06-01", repr(expires)))
    made = new_token()
    record: dict[str, object] = {"sha256": digest_of(made)}
    if expires:
        record["expires"] = expires
    if group:
        record["groups"] = group
    if as_json:
        print_json({"name": name, "token": made, "record": record})
        return
    typer.echo(f"{made}\n", err=False)
    typer.echo("Add this to the access file:\n")
    groups = f", groups: [{', '.join(group)}]" if group else ""
    until = f", expires: {expires}" if expires else ""
    typer.echo(f"tokens:\n  {plain(name)}: {{sha256: {record['sha256']}{until}{groups}}}")


@app.command(epilog=CHECK_EPILOG)
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An access file.", show_default=False)],
    who: Annotated[
        str,
        typer.Argument(
            help="token:NAME, group:NAME, oidc:PROVIDER/NAME, certificate:NAME or anonymous", show_default=False
        ),
    ],
    what: Annotated[str, typer.Argument(help=f"One of {', '.join(PERMISSIONS)}.", show_default=False)],
    model: Annotated[str, typer.Option(help="The model that it concerns.", show_default="all models")] = "",
    priority: Annotated[
        int, typer.Option(min=0, help="The priority that the request asks for.", show_default="none")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Say whether a caller may do something, and by which role."""
    try:
        access = load_access(file)
    except IsochroneError as error:
        _fail(error)
    if what not in PERMISSIONS:
        _fail(FlagError("WHAT", choice(what, list(PERMISSIONS)), repr(what)))
    tokens = {record.name: record for record in access.tokens.values()}
    if who.startswith("token:") and who not in tokens:
        _fail(FlagError("WHO", _known_tokens(who, sorted(tokens), file), repr(who)))
    if who != ANONYMOUS.name and not who.startswith(_KINDS):
        hint = f" (did you mean 'token:{who}'?)" if f"token:{who}" in tokens else ""
        _fail(
            FlagError(
                "WHO", f"token:NAME, group:NAME, oidc:PROVIDER/NAME, certificate:NAME or anonymous{hint}", repr(who)
            )
        )
    token = tokens.get(who)
    identity = ANONYMOUS if who == ANONYMOUS.name else Identity(who, token.groups if token else frozenset())
    if who.startswith("group:"):
        identity = Identity(f"a caller of {who}", frozenset((who.removeprefix("group:"),)))
    decision = access.policy.decide(identity, what, model, priority)
    if token is not None and (refusal := token.refusal(time.time())):
        decision = Decision(False, refusal)
    if as_json:
        print_json({"allowed": decision.allowed, "reason": decision.reason})
    else:
        typer.echo(f"{'allowed' if decision.allowed else 'denied'}: {decision.reason}")
    raise typer.Exit(0 if decision.allowed else 1)


def _known_tokens(who: str, names: list[str], file: Path) -> str:
    """What is expected in place of a token that is not in the file."""
    if not names:
        return f"a token of {file}, which has none"
    if len(names) > _NAMED:
        near = get_close_matches(who, names, n=3)
        hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
        return f"one of the {len(names)} tokens of {file}{hint}"
    return f"a token of {file}: {choice(who, names)}"


@app.command(epilog=PERMISSIONS_EPILOG)
def permissions(as_json: JsonOption = False) -> None:
    """List the permissions that roles can give."""
    if as_json:
        print_json(PERMISSIONS)
        return
    shown = table("Permissions", "permission", "covers")
    for name, meaning in PERMISSIONS.items():
        shown.add_row(name, meaning)
    make_console().print(shown)


def _fail(error: IsochroneError) -> NoReturn:
    typer.echo(f"isochrone auth: {error}", err=True)
    raise typer.Exit(1)
