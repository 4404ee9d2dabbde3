"""``isochrone encrypt``: encrypt versions of a model, or give encrypted ones a new key."""

from __future__ import annotations

from typing import Annotated

import typer

from isochrone.cli.api_client import JsonOption, print_json
from isochrone.cli.security.repositories import model_directories, repository_directory, target_version, versions_of
from isochrone.errors import IsochroneError
from isochrone.models.repository.encrypted.writing import encrypt_version, rewrap_version
from isochrone.models.repository.signed.covered import signature_name
from isochrone.secure.encryption.model_keys import METAVAR, ModelKeys

EPILOG = """
\b
Examples:
  isochrone encrypt ./models detector --version 3 --as-version 4 --key file:model.key
  isochrone encrypt ./models detector --version all --key 'command:/usr/local/bin/kms-hook'
  isochrone encrypt ./models detector --version all --rewrap --key file:new.key --old-key file:model.key

'openssl rand -hex 32 > model.key' makes a key. Version 3 becomes a version 4 of encrypted files, with its wrapped key
in 4.wrapped-key. Without --as-version the version itself is replaced: its digest changes, so do that where nobody
serves it. Sign after encrypting: a signature covers the encrypted files. --rewrap changes 4.wrapped-key alone:
digest and signature stay.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def encrypt(
    repository: Annotated[str, typer.Argument(help="A model repository on disk.", show_default=False)],
    model: Annotated[str, typer.Argument(help="The model.", show_default=False)],
    key: Annotated[
        str,
        typer.Option(
            metavar=METAVAR,
            help="The key: a file or variable with 32 bytes in hexadecimal, or a program that wraps keys.",
        ),
    ],
    version: Annotated[str, typer.Option(help="A version, or all.", show_default="the newest")] = "",
    as_version: Annotated[
        str, typer.Option(help="Write a new version of this number.", show_default="replace the version")
    ] = "",
    rewrap: Annotated[
        bool, typer.Option("--rewrap", help="Give encrypted versions the key in place of theirs.")
    ] = False,
    old_key: Annotated[
        list[str] | None,
        typer.Option(metavar=METAVAR, help="With --rewrap: their key. May be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Encrypt versions of a model at rest."""
    rows = []
    try:
        if rewrap == (not old_key):
            raise typer.BadParameter("go together", param_hint="--rewrap and --old-key")
        if rewrap and as_version:
            raise typer.BadParameter("does not go with --rewrap", param_hint="--as-version")
        directory = model_directories(repository_directory(repository), [model])[0]
        keys = ModelKeys([key], "--key")
        old = ModelKeys(old_key or (), "--old-key")
        for number in versions_of(directory, version):
            if rewrap:
                written = rewrap_version(directory, number, old, keys)
            else:
                target = target_version(as_version, number, version)
                written = encrypt_version(directory, number, target, keys)
            assert written.key is not None
            rows.append(
                {"model": model, "version": int(written.directory.name), "files": written.files, "key": written.key.id}
            )
            if not as_json:
                done = "key wrapped again" if rewrap else f"{written.files} files encrypted"
                typer.echo(f"{written.directory}: {done}, with key {written.key.id}")
                if not rewrap and (directory / signature_name(int(written.directory.name))).exists():
                    typer.echo(
                        f"{signature_name(int(written.directory.name))} is of the plain files: sign the version again"
                    )
    except (IsochroneError, OSError) as error:
        typer.secho(f"isochrone encrypt: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json(rows)
