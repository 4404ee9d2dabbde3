"""``isochrone render grafana``: dashboards for a Grafana server that reads the Prometheus of a fleet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from isochrone.cli.console import counted
from isochrone.cli.render.failing import failing
from isochrone.cli.render.writing import write_out
from isochrone.engines.kubernetes.packaging.yaml_text import yaml_text
from isochrone.errors import FlagError
from isochrone.monitoring.dashboards.catalog import all_dashboards
from isochrone.monitoring.dashboards.layout import Dashboard
from isochrone.monitoring.dashboards.provisioning import DASHBOARDS, DATA_SOURCE, PROVIDER, data_source, provider

EPILOG = """
\b
Examples:
  isochrone render grafana --out monitoring
  isochrone render grafana --out monitoring --prometheus http://prometheus:9090 --path /etc/isochrone/dashboards

The dashboards hold for every fleet: models, workers and the fleet are chosen in Grafana. Start Grafana with
GF_PATHS_PROVISIONING=monitoring/provisioning, or copy the files into its own directory. Needs pip install
'isochrone[grafana]'.
"""
_MARK = "# Rendered by isochrone for Grafana; render again instead of changing it."


def grafana(
    out: Annotated[Path, typer.Option(help="Directory for the files. It is created.", show_default=False)],
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="The Prometheus server, as Grafana reaches it.")
    ] = "http://127.0.0.1:9090",
    path: Annotated[
        str,
        typer.Option(
            metavar="DIRECTORY",
            help="The directory of the dashboards, as Grafana sees it.",
            show_default="dashboards below --out",
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths as JSON.")] = False,
) -> None:
    """Write Grafana dashboards, and the files by which Grafana finds them and Prometheus.

    They read the series of isochrone render prometheus.
    """
    with failing():
        _check_url(prometheus)
        text = _builder()
        files = {f"{DASHBOARDS}/{each.uid}.json": text(each) for each in all_dashboards()}
        files[PROVIDER] = yaml_text([provider(path or str((out / DASHBOARDS).absolute()))], _MARK)
        files[DATA_SOURCE] = yaml_text([data_source(prometheus)], _MARK)
        # The directory may hold the rules for Prometheus, or dashboards of others.
        write_out(out, files, deletes=False)
    if as_json:
        typer.echo(json.dumps({"directory": str(out), "files": list(files)}))
        return
    typer.echo(f"{counted(len(files), 'file')} written to {out}")


def _builder() -> Callable[[Dashboard], str]:
    try:
        from isochrone.monitoring.dashboards.building import dashboard_text
    except ModuleNotFoundError as error:
        expected = "Grafana's package for dashboards: pip install 'isochrone[grafana]'"
        raise FlagError("isochrone render grafana", expected, f"no package {error.name}") from None
    return dashboard_text


def _check_url(given: str) -> None:
    try:
        parts = urlsplit(given)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise FlagError("--prometheus", "http://HOST:PORT or https://HOST:PORT of a Prometheus server", repr(given))
