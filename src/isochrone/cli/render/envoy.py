"""``isochrone render envoy``: the configuration of an Envoy that asks a picker."""

from __future__ import annotations

import json
from typing import Annotated

import typer
import yaml

from isochrone.cli.render.envoy_bootstrap import BODY_MODES, EnvoySettings, bootstrap
from isochrone.errors import FlagError, IsochroneError

EPILOG = """
\b
Examples:
  isochrone render envoy --picker 127.0.0.1:9002 > envoy.yaml && envoy -c envoy.yaml
  isochrone render envoy --picker picker.default.svc:9002 --listen 0.0.0.0:8080 --body-mode NONE
  isochrone render envoy --picker 127.0.0.1:9002 --fallback 10.0.0.1:8000 --fallback 10.0.0.2:8000

NONE costs least: then the picker sees no bodies, so calls of gRPC and of OpenAI must name their model in the header
x-isochrone-model, and sequences are not kept together.

The picker is called without TLS. For one with --tls-cert, add a transport_socket to the cluster 'picker'.
"""


def envoy(
    picker: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where 'isochrone pick' listens.")] = (
        "127.0.0.1:9002"
    ),
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients connect to.")] = "0.0.0.0:8000",
    body_mode: Annotated[
        str, typer.Option(help=f"How bodies are shown to the picker: {', '.join(BODY_MODES)}.")
    ] = "FULL_DUPLEX_STREAMED",
    fallback: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A worker that gets requests while the picker is away; repeatable.",
            show_default="none: such requests are answered 500",
        ),
    ] = None,
    admin: Annotated[str, typer.Option(metavar="HOST:PORT", help="Envoy's admin page.", show_default="off")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of YAML.")] = False,
) -> None:
    """Print the configuration of an Envoy whose workers a picker chooses."""
    try:
        if body_mode not in BODY_MODES:
            raise FlagError("--body-mode", f"one of {', '.join(BODY_MODES)}", repr(body_mode))
        settings = EnvoySettings(
            listen=_address("--listen", listen),
            picker=_address("--picker", picker),
            body_mode=body_mode,
            fallback=tuple(_address("--fallback", each) for each in fallback or ()),
            admin=_address("--admin", admin) if admin else None,
        )
    except IsochroneError as error:
        typer.secho(f"isochrone render: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    document = bootstrap(settings)
    typer.echo(json.dumps(document, indent=2) if as_json else yaml.safe_dump(document, sort_keys=False), nl=as_json)


def _address(flag: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise FlagError(flag, "HOST:PORT", repr(text))
    return host.removeprefix("[").removesuffix("]"), int(port)
