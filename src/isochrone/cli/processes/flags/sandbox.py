"""Flags of the sandbox of python models, for workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import structlog
import typer

from isochrone.errors import FlagError
from isochrone.secure.sandbox.settings import SandboxSettings, default_memory, read_grants
from isochrone.secure.sandbox.support import check, present_support
from isochrone.secure.sandbox.trial import try_out

log = structlog.get_logger(__name__)

SandboxOption = Annotated[
    bool | None,
    typer.Option(
        "--sandbox/--no-sandbox",
        help="Run every python model in a confined process of its own, and no other code of models without"
        " --trust-model.",
        show_default="on with --access or --require-secure",
    ),
]
BestEffortOption = Annotated[
    bool,
    typer.Option(
        "--sandbox-best-effort/--no-sandbox-best-effort",
        help="With --sandbox: also start where the kernel lacks a part of it.",
    ),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GRANT=MODEL",
        help="With --sandbox: what a model may do beside computing: network or processes. May be repeated.",
    ),
]
MemoryOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[MODEL=]BYTES",
        help="With --sandbox: memory of one process of a model, such as 4GiB. May be repeated.",
        show_default="half of the machine's",
    ),
]
TrustOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL",
        help="With --sandbox: a model whose files may run code inside the worker, such as TorchScript. May be"
        " repeated.",
    ),
]


def read_sandbox(
    wanted: bool, best_effort: bool, allow: Sequence[str], memory: Sequence[str], trusted: Sequence[str]
) -> tuple[SandboxSettings | None, frozenset[str] | None]:
    """The sandbox and the trusted models; (None, None): models are not confined. Raises ``FlagError``."""
    flags = {
        "--sandbox-best-effort": best_effort,
        "--sandbox-allow": allow,
        "--sandbox-memory": memory,
        "--trust-model": trusted,
    }
    if not wanted:
        for flag, given in flags.items():
            if given:
                raise FlagError(flag, "--sandbox beside it", "no --sandbox")
        return None, None
    support = present_support()
    missing = check(support, best_effort=best_effort)
    by_model = _memory(memory)
    settings = SandboxSettings(support, by_model.pop("", 0) or default_memory(), by_model, read_grants(allow))
    lacks = [*missing, *try_out(support).lacks()]
    log.info("python models run in a sandbox", without=lacks)
    return settings, frozenset(trusted)


def _memory(given: Sequence[str]) -> dict[str, int]:
    """Model → bytes; "": every other model."""
    # Imported here: most workers start without fleet.yaml's types.
    from pydantic_core import PydanticCustomError

    from isochrone.control.fleet.settings.quantities import parse_bytes

    found: dict[str, int] = {}
    for text in given:
        model, _, amount = text.rpartition("=")
        try:
            found[model] = parse_bytes(int(amount) if amount.isdecimal() else amount)
        except PydanticCustomError as error:
            raise FlagError("--sandbox-memory", error.message(), repr(text)) from None
        if not found[model]:
            raise FlagError("--sandbox-memory", "at least 1 byte", repr(text))
    return found
