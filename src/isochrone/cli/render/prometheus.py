"""``isochrone render prometheus``: rules and scrape configuration for a Prometheus server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from isochrone.cli.console import counted
from isochrone.cli.render.failing import failing
from isochrone.cli.render.writing import write_out
from isochrone.control.fleet.reading.parsing import parse_fleet, read_text
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes.packaging.yaml_text import yaml_text
from isochrone.errors import FlagError
from isochrone.monitoring.rendering import CONFIGURATION, RUNBOOKS, configuration, rules_document, rules_file
from isochrone.monitoring.scraping import DISCOVERIES, Discovery, plain_configs, scrape_configs, with_credentials
from isochrone.monitoring.thresholds import Flags, thresholds

EPILOG = """
\b
Examples:
  isochrone render prometheus fleet.yaml --out monitoring && prometheus --config.file monitoring/prometheus.yml
  isochrone render prometheus fleet.yaml --out monitoring --discovery static --objective 99.9
  isochrone render prometheus fleet.yaml --out monitoring --discovery kubernetes
  isochrone render prometheus --worker 10.0.0.7:8002 --gateway 10.0.0.8:9002 --slo-ms 50 > rules.yaml

Without --out, the rules are printed. Each alert links to a page that says what to look at and what to change.
"""
#: Not that of manifests: rendering these deletes files with their own first line.
_MARK = "# Rendered by isochrone for Prometheus; change fleet.yaml and render again."
#: Of 'isochrone serve'.
_WORKER_PAGE = "127.0.0.1:8002"


def prometheus(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FLEET.yaml", help="The fleet.yaml.", show_default="servers that are no fleet: see --worker"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for the files. It is created.", show_default="print the rules")
    ] = None,
    discovery: Annotated[
        str,
        typer.Option(
            help="How Prometheus finds the metrics pages. http: the controllers name them; static: the file has fixed"
            " ports; kubernetes: by the pods of the cluster."
        ),
    ] = "http",
    controller: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A controller as Prometheus reaches it; repeatable.",
            show_default="control.listen of the file",
        ),
    ] = None,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Without a fleet.yaml: the metrics page of a worker, with TLS https://HOST:PORT; repeatable.",
            show_default=_WORKER_PAGE,
        ),
    ] = None,
    gateway: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT", help="Without a fleet.yaml: that of a gateway; repeatable.", show_default="none"
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            help="Without a fleet.yaml: PEM authorities of pages with https://.",
            show_default="the system's authorities",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Without a fleet.yaml: the label 'fleet' of these servers.", show_default="default"),
    ] = None,
    slo_ms: Annotated[float, typer.Option(help="Deadline of models that have none in the file.")] = 200.0,
    objective: Annotated[float, typer.Option(help="Percent of requests that must be answered in time.")] = 99.0,
    queue_share: Annotated[
        float, typer.Option(help="Percent of the deadline that nine of ten requests may wait in a queue.")
    ] = 50.0,
    jitter_ms: Annotated[
        float | None,
        typer.Option(
            help="Change of the round trip to a worker within ten minutes.",
            show_default="a tenth of the shortest deadline, at least 1",
        ),
    ] = None,
    loop_lag_ms: Annotated[
        float | None,
        typer.Option(
            help="Lag of an event loop that one in a hundred callbacks may have.",
            show_default="a tenth of the shortest deadline, at least 5",
        ),
    ] = None,
    gpu_share: Annotated[float, typer.Option(help="Percent of an hour that a GPU should compute.")] = 20.0,
    certificate_days: Annotated[float, typer.Option(help="Days before a certificate expires.")] = 14.0,
    credentials_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="File on Prometheus's machine with a token for a fleet that checks callers; its caller needs the role"
            " reader.",
            show_default="none",
        ),
    ] = "",
    runbooks: Annotated[str, typer.Option(metavar="URL", help="Directory of the runbooks in links.")] = RUNBOOKS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rules, or with --out the paths, as JSON.")] = False,
) -> None:
    """Write recording rules, alerts and a scrape configuration for Prometheus.

    The limits of the alerts are the deadlines in fleet.yaml.
    """
    flags = Flags(
        slo_seconds=slo_ms / 1000,
        objective=objective / 100,
        queue_share=queue_share / 100,
        jitter_seconds=None if jitter_ms is None else jitter_ms / 1000,
        loop_lag_seconds=None if loop_lag_ms is None else loop_lag_ms / 1000,
        gpu_share=gpu_share / 100,
        certificate_days=certificate_days,
    )
    with failing():
        found = _discovery(discovery)
        fleet = parse_fleet(read_text(file), str(file), file.parent) if file is not None else None
        _check_beside(fleet, controller or (), worker or (), gateway or (), name)
        limits = thresholds(fleet, flags, "default" if name is None else name)
        # The network policies of a cluster keep Prometheus from the control API.
        rules = rules_document(limits, with_controllers=fleet is not None and found != "kubernetes", runbooks=runbooks)
        if fleet is not None:
            scraping = scrape_configs(fleet, found, controller or (), file.parent if file is not None else Path())
        else:
            scraping = plain_configs(limits.fleet, worker or ([] if gateway else [_WORKER_PAGE]), gateway or (), ca)
        if credentials_file:
            scraping = with_credentials(scraping, credentials_file)
        elif fleet is not None and fleet.security.access is not None and out is not None:
            typer.echo(
                "security.access: the fleet's pages ask for a token; name a file with one by --credentials-file",
                err=True,
            )
        if out is None:
            typer.echo(json.dumps(rules) if as_json else yaml_text([rules], _MARK), nl=as_json)
            return
        files = {
            CONFIGURATION: yaml_text([configuration(limits.fleet, scraping)], _MARK),
            rules_file(limits.fleet): yaml_text([rules], _MARK),
        }
        # A directory may hold the rules of several fleets, or a fleet's manifests.
        write_out(out, files, deletes=False)
    if as_json:
        typer.echo(json.dumps({"directory": str(out), "files": list(files)}))
        return
    typer.echo(f"{counted(len(files), 'file')} written to {out}")


def _discovery(given: str) -> Discovery:
    for known in DISCOVERIES:
        if given == known:
            return known
    raise FlagError("--discovery", f"one of {', '.join(DISCOVERIES)}", repr(given))


def _check_beside(
    fleet: Fleet | None, controllers: Sequence[str], workers: Sequence[str], gateways: Sequence[str], name: str | None
) -> None:
    """Flags that say what a fleet.yaml says, or that need one."""
    if fleet is None and controllers:
        raise FlagError("--controller", "a fleet.yaml beside it", "none")
    for flag, given in (("--worker", workers), ("--gateway", gateways)):
        if fleet is not None and given:
            raise FlagError(flag, "no fleet.yaml beside it: the file says where its processes are", given[0])
    if fleet is not None and name is not None:
        raise FlagError("--name", "no fleet.yaml beside it: the file names the fleet", name)
