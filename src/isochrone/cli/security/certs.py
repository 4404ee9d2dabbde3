"""``isochrone certs``: a development authority, its certificates, and their renewal.

For machines of one's own. In production cert-manager, SPIRE or a company's authority make the files; servers read those
of any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from isochrone.errors import IsochroneError

if TYPE_CHECKING:
    from isochrone.secure.certificates.authority import Authority, Held
    from isochrone.secure.certificates.stages import Stage, Step

_AUTHORITY_DAYS, _LEAF_DAYS = 3650, 90

INIT_EPILOG = """
\b
Examples:
  isochrone certs init certs
  isochrone certs issue certs worker --host localhost --host 127.0.0.1
  isochrone serve ./models --tls-cert certs/worker/tls.crt --tls-key certs/worker/tls.key
"""
ISSUE_EPILOG = """
\b
Examples:
  isochrone certs issue certs worker --host worker.internal --host 10.0.0.7
  isochrone certs issue certs gateway --host localhost --uri spiffe://example.org/gateway --client
  isochrone certs issue certs alice --client --uri spiffe://example.org/users/alice

Writes DIR/NAME/tls.crt and tls.key, in place of earlier ones: running processes read them again within two seconds.
"""
ROTATE_EPILOG = """
\b
Examples:
  isochrone certs rotate certs          (new keys and certificates, from the same authority)
  isochrone certs rotate certs --ca     (the next of three steps to another authority)

The steps of --ca: trust the new authority; sign with it; trust the old one no more. Let all processes read the files
between two steps: two seconds on this machine, longer where files are copied.
"""
SHOW_EPILOG = """
\b
Examples:
  isochrone certs show certs
  isochrone certs show certs --json
"""

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the authority.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Make and renew certificates of a development authority.",
)


@app.command(epilog=INIT_EPILOG)
def init(
    directory: DirectoryArgument,
    days: Annotated[int, typer.Option(help="Days that the authority is valid.", min=1, max=36500)] = _AUTHORITY_DAYS,
) -> None:
    """Make an authority: DIR/ca.crt, which clients and servers trust, and its key."""
    with _failing("init"):
        from isochrone.secure.certificates.authority import Authority

        Authority.create(directory, timedelta(days=days), _now())
        typer.echo(f"wrote {directory}/ca.crt and its key ca.key: whoever has the key can be any server")


@app.command(epilog=ISSUE_EPILOG)
def issue(
    directory: DirectoryArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Directory of the certificate in DIR.")],
    host: Annotated[
        list[str] | None, typer.Option(help="DNS name or address of the server; repeatable.", show_default="none")
    ] = None,
    uri: Annotated[
        list[str] | None,
        typer.Option(help="Identity, as spiffe://example.org/worker; repeatable.", show_default="none"),
    ] = None,
    client: Annotated[bool, typer.Option("--client", help="Valid for clients; with --host for both.")] = False,
    days: Annotated[int, typer.Option(help="Days that it is valid.", min=1, max=36500)] = _LEAF_DAYS,
) -> None:
    """Make a certificate for a server, a client or both. A client without --uri and --host is called NAME."""
    with _failing("issue"):
        from isochrone.secure.certificates.authority import Authority
        from isochrone.secure.certificates.minting import Leaf
        from isochrone.secure.certificates.subject_names import read_names

        leaf = Leaf(name, read_names(host or (), uri or ()), bool(host), client, timedelta(days=days))
        _report([Authority(directory).issue(leaf, _now())])


@app.command(epilog=ROTATE_EPILOG)
def rotate(
    directory: DirectoryArgument,
    ca: Annotated[bool, typer.Option("--ca", help="Take the next step to another authority.")] = False,
    days: Annotated[int, typer.Option(help="With --ca: days that the new one is valid.", min=1)] = _AUTHORITY_DAYS,
) -> None:
    """Renew every certificate, with new keys; running processes follow without a restart."""
    with _failing("rotate"):
        from isochrone.secure.certificates.authority import Authority

        authority = Authority(directory)
        if not ca:
            _report(authority.renew(_now()))
            return
        step = authority.replace(timedelta(days=days), _now())
        typer.echo(_after(step, directory))


@app.command(epilog=SHOW_EPILOG)
def show(directory: DirectoryArgument, as_json: JsonOption = False) -> None:
    """Show the authorities and certificates: names, serial numbers, ends of validity."""
    with _failing("show"):
        from isochrone.secure.certificates.authority import Authority

        authority = Authority(directory)
        if as_json:
            typer.echo(msgspec.json.format(msgspec.json.encode(_as_json(authority))).decode())
            return
        _report(authority.listing())
        if note := _note(authority.stage(), directory):
            typer.echo(note)


def _after(step: Step, directory: Path) -> str:
    again = f"when every process has read its files (two seconds), run again: isochrone certs rotate {directory} --ca"
    return {
        "introduce": f"{directory}/ca.crt has a second authority, which signs nothing yet; {again}",
        "sign": f"all certificates are signed by the new authority, the old one is still trusted; {again}",
        "retire": f"{directory}/ca.crt has the new authority alone: the change is complete",
    }[step.value]


def _note(stage: Stage, directory: Path) -> str:
    again = f"go on with: isochrone certs rotate {directory} --ca"
    return {
        "single": "",
        "introduced": f"The second authority signs nothing yet; {again}",
        "signing": f"The old authority is still trusted; {again}",
    }[stage.value]


def _as_json(authority: Authority) -> dict[str, Any]:
    return {
        "stage": authority.stage().value,
        "certificates": [
            {
                "name": held.name,
                "kind": _kind(held),
                "path": str(held.path),
                "serial": held.facts.serial,
                "expires": held.facts.expires,
                "issuer": held.facts.issuer,
                "hosts": [] if held.leaf is None else [*held.leaf.names.dns, *held.leaf.names.addresses],
                "uris": [] if held.leaf is None else held.leaf.names.uris,
            }
            for held in authority.listing()
        ],
    }


def _kind(held: Held) -> str:
    if held.leaf is None:
        return "authority"
    return " and ".join(
        name for name, is_so in (("server", held.leaf.is_server), ("client", held.leaf.is_client)) if is_so
    )


def _report(certificates: Iterable[Held]) -> None:
    for held in certificates:
        names = held.facts.subject if held.leaf is None else str(held.leaf.names)
        typer.echo(
            f"{held.path}: {_kind(held)}, {names}, serial {held.facts.serial}, until {held.facts.expires:%Y-%m-%d}"
        )


def _now() -> datetime:
    return datetime.now(UTC)


@contextmanager
def _failing(command: str) -> Iterator[None]:
    """End the command with the error's message and status 1 on failure."""
    try:
        yield
    except (IsochroneError, OSError) as error:
        typer.secho(f"isochrone certs {command}: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
