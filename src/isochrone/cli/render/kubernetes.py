"""``isochrone render kubernetes``: the objects of a fleet for a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from isochrone.cli.console import counted
from isochrone.cli.render.failing import failing
from isochrone.cli.render.writing import write_out
from isochrone.control.fleet.reading.parsing import read_text
from isochrone.engines.kubernetes.rendering import DIRECTORIES, FORMATS, Format, notes, rendered

EPILOG = """
\b
Examples:
  isochrone render kubernetes fleet.yaml | kubectl apply -f -
  isochrone render kubernetes fleet.yaml --out manifests
  isochrone render kubernetes fleet.yaml --format engine | kubectl apply -f -
  isochrone render kubernetes fleet.yaml --format helm --out chart
  isochrone render kubernetes fleet.yaml --format kustomize --out overlays
  isochrone render kubernetes fleet.yaml --format kserve

The store must be etcd. Nothing is sent to a cluster. Without --out, the documents are printed. A file of an earlier
rendering in the directory that the fleet no longer has is deleted; other files are left alone.
"""


def kubernetes(
    file: Annotated[Path, typer.Argument(metavar="FLEET.yaml", help="The fleet.yaml.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Directory for the files. It is created.", show_default="print them")
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="manifests: for kubectl; engine: the same, with our engine in place of StatefulSets; helm: a chart;"
            " kustomize: a base with overlays; kserve: serving runtimes for KServe; kuberay: a Ray cluster for the"
            " engine ray.",
        ),
    ] = "manifests",
    as_json: Annotated[bool, typer.Option("--json", help="Print the documents, or with --out the paths, as JSON.")] = (
        False
    ),
) -> None:
    """Write the Kubernetes objects of a fleet.

    These are pods, services, quotas, network policies, autoscalers.
    """
    with failing():
        chosen = _chosen(form)
        if out is None and chosen in DIRECTORIES:
            raise typer.BadParameter(f"{chosen} makes a directory; name it with --out", param_hint="--out")
        text = read_text(file)
        files = rendered(text, str(file), chosen)
        for note in notes(text, str(file), chosen):
            typer.secho(f"isochrone render: {note}", fg="yellow", err=True)
        if out is None:
            _print(files, as_json)
            return
        deleted = write_out(out, files)
    if as_json:
        typer.echo(json.dumps({"directory": str(out), "files": list(files), "deleted": deleted}))
        return
    gone = f", {counted(len(deleted), 'old file')} deleted" if deleted else ""
    typer.echo(f"{counted(len(files), 'file')} written to {out}{gone}")


def _chosen(form: str) -> Format:
    for known in FORMATS:
        if form == known:
            return known
    raise typer.BadParameter(f"expected one of {', '.join(FORMATS)}, given {form!r}", param_hint="--format")


def _print(files: dict[str, str], as_json: bool) -> None:
    """The manifests as one stream. Files in sub-directories are not for kubectl, and not printed."""
    texts = [text for path, text in files.items() if "/" not in path]
    if as_json:
        import yaml

        typer.echo(json.dumps([document for text in texts for document in yaml.safe_load_all(text)]))
        return
    typer.echo("".join(texts), nl=False)
