"""``isochrone render``: the group of its kinds. A new kind is a module and a line here."""

from __future__ import annotations

import typer

from isochrone.cli.render import envoy, grafana, kubernetes, prometheus

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Write files for other programs.",
)
app.command(epilog=kubernetes.EPILOG)(kubernetes.kubernetes)
app.command(epilog=envoy.EPILOG)(envoy.envoy)
app.command(epilog=prometheus.EPILOG)(prometheus.prometheus)
app.command(epilog=grafana.EPILOG)(grafana.grafana)


@app.callback()
def main() -> None:
    """Runs before every kind: with it, a group of one kind stays a group."""
