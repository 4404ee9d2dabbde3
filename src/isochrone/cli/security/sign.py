"""``isochrone sign``: sign versions of a model with a key, or with a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isochrone.cli.api_client import JsonOption, print_json
from isochrone.cli.security.repositories import model_directories, repository_directory, versions_of
from isochrone.errors import IsochroneError
from isochrone.models.repository.signed.covered import covered_files, signature_name
from isochrone.models.repository.signed.hashing import hash_file
from isochrone.secure.signing.signer import Signer
from isochrone.whole_files import write_whole

EPILOG = """
\b
Examples:
  isochrone sign ./models detector --key release.key
  isochrone sign ./models detector --version all --key release.key --source git:4f2a9c1
  isochrone sign ./models detector --key release.key --certificate release.crt --chain issuing.crt

\b
A key, and its public half for isochrone verify and isochrone serve --require-signatures:
  openssl ecparam -name prime256v1 -genkey -noout -out release.key
  openssl ec -in release.key -pubout -out release.pub

The signature of version 3 is the file 3.sig beside it, in OpenSSF's format. It covers the version's files, config.pbtxt
and what that names: after a change, sign all versions again.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def sign(
    repository: Annotated[str, typer.Argument(help="A model repository on disk.", show_default=False)],
    model: Annotated[str, typer.Argument(help="The model.", show_default=False)],
    key: Annotated[Path, typer.Option(help="Private key in PEM, on the curve P-256, P-384 or P-521.")],
    version: Annotated[str, typer.Option(help="A version, or all.", show_default="the newest")] = "",
    certificate: Annotated[
        Path | None, typer.Option(help="The key's certificate in PEM; verifiers then trust its authority.")
    ] = None,
    chain: Annotated[
        list[Path] | None, typer.Option(help="Certificate between that one and its authority. May be repeated.")
    ] = None,
    source: Annotated[
        str,
        typer.Option(help="What the version was made from, such as a commit; status shows it.", show_default="none"),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Sign versions of a model, so that workers can require it."""
    rows = []
    try:
        if chain and certificate is None:
            raise typer.BadParameter("needs --certificate", param_hint="--chain")
        directory = model_directories(repository_directory(repository), [model])[0]
        signer = Signer(key, certificate, chain or ())
        for number in versions_of(directory, version):
            files = {file: hash_file(directory / file) for file in covered_files(directory, number)}
            path = directory / signature_name(number)
            write_whole(path, signer.sign(model, number, files, source))
            rows.append({"model": model, "version": number, "signature": str(path), "files": len(files)})
            if not as_json:
                typer.echo(f"{path}: {len(files)} files of {model} version {number}")
    except (IsochroneError, OSError) as error:
        typer.secho(f"isochrone sign: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json(rows)
