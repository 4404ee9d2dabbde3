"""``isochrone why``: explain one request from what gateways and workers remember of it, or from dumped misses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlsplit

import typer

from isochrone.cli.api_client import (
    DEFAULT_API,
    ApiClient,
    ApiFailed,
    ApiOption,
    JsonOption,
    failing_as,
    print_json,
    token_fields,
)
from isochrone.cli.api_tls import api_tls
from isochrone.control.flights.asking import Asked, Target, Why, answer, ask, unknown
from isochrone.observe.flights.dump import read_dump
from isochrone.observe.flights.messages import GATEWAY, WORKER, FlightPage
from isochrone.wire.tls.process_tls import set_process_tls

EPILOG = """
\b
Examples:
  isochrone why 7f3a-12                                      (asks the fleet's controller)
  isochrone why 7f3a-12 --gateway 10.0.0.1:8002 --worker 10.0.0.2:8002
  isochrone why 7f3a-12 --file /var/log/flights/gateway-812.jsonl
  isochrone why 7f3a-12 --json

The id is that of the request's message, its x-request-id, or the id of its trace. Addresses are those of metrics ports.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def why(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="The id of the request.")],
    gateway: Annotated[
        list[str] | None, typer.Option(help="HOST:PORT of a gateway's metrics port. May be repeated.")
    ] = None,
    worker: Annotated[
        list[str] | None, typer.Option(help="HOST:PORT of a worker's metrics port. May be repeated.")
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="A file that --dump-flights has written. May be repeated.")
    ] = None,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Explain one request: where it went, what it waited for, why, and what would have been better."""
    with failing_as("why"):
        if not request_id:
            raise ApiFailed("REQUEST_ID: expected the id of a request, given an empty one")
        found = _found(request_id, gateway or (), worker or (), file or (), api)
        if as_json:
            print_json(found)
            return
        typer.echo(f"cause: {found.cause}")
        for line in found.lines:
            # Ids and messages are callers' own: nothing in them may act on the terminal.
            typer.echo("  " + "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line))


def _found(request_id: str, gateways: Sequence[str], workers: Sequence[str], files: Sequence[Path], api: str) -> Why:
    if files:
        asked = Asked([page for path in files for page in _dumped(path, request_id)], [])
    elif gateways or workers:
        targets = [Target(GATEWAY, _address(each), tls=_is_tls(each)) for each in gateways]
        targets += [Target(WORKER, _address(each), tls=_is_tls(each)) for each in workers]
        if any(each.tls for each in targets):
            set_process_tls(api_tls().client(), permissive=True)
        asked = asyncio.run(ask(request_id, targets, token_fields()))
    else:
        with ApiClient(api) as client:
            return client.get(f"/v1/why/{quote(request_id, safe='')}", Why)
    found = answer(request_id, asked)
    if found is None:
        raise ApiFailed(_not_in_files(request_id) if files else unknown(request_id, asked))
    return found


def _dumped(path: Path, request_id: str) -> list[FlightPage]:
    try:
        return list(read_dump(path, request_id))
    except OSError as error:
        raise ApiFailed(f"--file {path}: {error.strerror or error}") from None


def _not_in_files(request_id: str) -> str:
    return f"no line of the files has request {request_id!r}; only deadline misses are written"


def _is_tls(text: str) -> bool:
    return text.startswith("https://")


def _address(text: str) -> str:
    """HOST:PORT, also of a URL."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        if parts.hostname and parts.port:
            return parts.netloc
    except ValueError:
        pass
    raise ApiFailed(f"expected HOST:PORT of a metrics port, given {text!r}")
