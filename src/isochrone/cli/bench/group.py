"""``isochrone bench``: the group. ``isochrone bench URL`` is short for ``isochrone bench run URL``."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from isochrone.cli.bench.compare import COMPARE_EPILOG, REPORT_EPILOG, compare_command, report_command
from isochrone.cli.bench.run import RUN_EPILOG, run_command

EPILOG = """
\b
Examples:
  isochrone bench http://localhost:8000 --model detector --rate 500
  isochrone bench run --help
  isochrone bench compare before.npz after.npz

"run" may be left out before a URL.
"""


class _WithDefault(TyperGroup):
    """A group whose first word may be a URL or an option of ``run``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_WithDefault,
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Measure a server under load: latency, rate and errors, in an open or a closed loop.",
    epilog=EPILOG,
)
app.command("run", epilog=RUN_EPILOG)(run_command)
app.command("compare", epilog=COMPARE_EPILOG)(compare_command)
app.command("report", epilog=REPORT_EPILOG)(report_command)
