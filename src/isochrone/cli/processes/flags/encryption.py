"""Flags of encrypted versions, for workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from isochrone.errors import FlagError
from isochrone.secure.encryption.model_keys import FLAG, METAVAR, ModelKeys
from isochrone.secure.encryption.no_dumps import forbid_dumps

ModelKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar=METAVAR,
        help="Key of encrypted versions: a file, a variable, or a program that unwraps keys. May be repeated.",
        show_default="encrypted versions are not loaded",
    ),
]
RequireEncryptionOption = Annotated[
    bool,
    typer.Option(
        "--require-encryption/--no-require-encryption",
        help="With --model-key: load only versions that are encrypted.",
    ),
]
AllowDiskOption = Annotated[
    bool,
    typer.Option(
        "--model-key-allow-disk/--no-model-key-allow-disk",
        help="With --model-key: decrypt to TMPDIR where no file system in memory can be written.",
    ),
]


def read_model_keys(sources: Sequence[str], *, required: bool, allow_disk: bool) -> ModelKeys | None:
    """None: there are none. Raises ``FlagError``."""
    if not sources:
        for flag, given in (("--require-encryption", required), ("--model-key-allow-disk", allow_disk)):
            if given:
                raise FlagError(flag, f"{FLAG} beside it", f"no {FLAG}")
        return None
    forbid_dumps()
    return ModelKeys(sources)
