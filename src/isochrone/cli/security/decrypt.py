"""``isochrone decrypt``: write the plain files of encrypted versions back into a repository."""

from __future__ import annotations

from typing import Annotated

import typer

from isochrone.cli.api_client import JsonOption, print_json
from isochrone.cli.security.repositories import model_directories, repository_directory, target_version, versions_of
from isochrone.errors import IsochroneError
from isochrone.models.repository.encrypted.writing import decrypt_version
from isochrone.secure.encryption.model_keys import METAVAR, ModelKeys

EPILOG = """
\b
Examples:
  isochrone decrypt ./models detector --version 4 --as-version 5 --key file:model.key
  isochrone decrypt ./models detector --version all --key file:old.key --key file:new.key

Without --as-version the encrypted version is replaced, and its digest changes.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def decrypt(
    repository: Annotated[str, typer.Argument(help="A model repository on disk.", show_default=False)],
    model: Annotated[str, typer.Argument(help="The model.", show_default=False)],
    key: Annotated[list[str], typer.Option(metavar=METAVAR, help="Key of the versions. May be repeated.")],
    version: Annotated[str, typer.Option(help="A version, or all.", show_default="the newest")] = "",
    as_version: Annotated[
        str, typer.Option(help="Write a new version of this number.", show_default="replace the version")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Decrypt versions of a model in their repository."""
    rows = []
    try:
        directory = model_directories(repository_directory(repository), [model])[0]
        keys = ModelKeys(key, "--key")
        for number in versions_of(directory, version):
            written = decrypt_version(directory, number, target_version(as_version, number, version), keys)
            rows.append({"model": model, "version": int(written.directory.name), "files": written.files})
            if not as_json:
                typer.echo(f"{written.directory}: {written.files} files decrypted")
    except (IsochroneError, OSError) as error:
        typer.secho(f"isochrone decrypt: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json(rows)
