"""A command that accepts Triton's flags beside its own options."""

from __future__ import annotations

from typing import Any, cast

import typer
from typer.core import TyperCommand

from isochrone.cli.triton.command_line import BadFlag, GivenFlags, own_switch, read

_META = "isochrone.triton_flags"


class TritonCommand(TyperCommand):
    """Takes Triton's flags out of the arguments before click reads the rest."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            rest, ctx.meta[_META] = read(args)
        except BadFlag as error:
            raise typer.BadParameter(str(error)) from None
        switches = {name for parameter in self.params for name in parameter.secondary_opts}
        return super().parse_args(ctx, [own_switch(word, switches) for word in rest])


def flags_of(context: typer.Context) -> GivenFlags:
    """Triton's flags of this call, for the command's function."""
    return cast(GivenFlags, context.meta[_META])
