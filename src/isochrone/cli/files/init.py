"""``isochrone init``: write a commented fleet.yaml for the models of a directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from isochrone.cli.api_client import ApiFailed, failing_as, print_json
from isochrone.cli.files.first_fleet import FoundModel, fleet_name, fleet_text, without_missing_steps
from isochrone.errors import IsochroneError
from isochrone.models.repository.config_files import CONFIG_FILE
from isochrone.models.repository.repository import Repository

EPILOG = """
\b
Examples:
  isochrone init
  isochrone init ./plant --models /srv/models
  isochrone init --force

Looks for models in Triton's layout in DIR/models, then in DIR itself.
"""

_FILE = "fleet.yaml"

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where fleet.yaml is written.")] = Path("."),
    models: Annotated[
        Path | None, typer.Option(help="The model repository.", show_default="DIR/models, else DIR")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a fleet.yaml that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a commented fleet.yaml for the models that are found."""
    with failing_as("init"):
        file = directory / _FILE
        if file.exists() and not force:
            raise ApiFailed(f"{file} is there already; overwrite it with --force")
        repository, found = _find(directory, models)
        if all(model.problem for model in found):
            raise ApiFailed(f"no model in {repository} can be served: {found[0].name}: {found[0].problem}")
        is_own = repository.resolve() == directory.resolve()
        # The directories of a repository are models, so the state goes where no worker looks for models.
        store = "sqlite:.isochrone/fleet.db" if is_own else "sqlite:state/fleet.db"
        name = fleet_name(directory.resolve().name)
        text = fleet_text(name, _relative(repository, directory, models), store, found)
        directory.mkdir(parents=True, exist_ok=True)
        # Atomically.
        unfinished = file.with_name(f".{_FILE}.{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(file)
        _report(file, name, found, as_json)


def _report(file: Path, name: str, found: list[FoundModel], as_json: bool) -> None:
    served = {model.name: model.versions[-1] for model in found if not model.problem}
    left_out = {model.name: model.problem for model in found if model.problem}
    if as_json:
        print_json({"file": str(file), "fleet": name, "models": served, "left_out": left_out})
        return
    words = ", ".join(f"{model} {version}" for model, version in served.items()) or "none"
    typer.echo(f"wrote {file}: fleet {name}, models: {words}")
    for model, problem in left_out.items():
        typer.secho(f"left out: {model}: {problem}", fg="yellow", err=True)
    typer.echo(f"Start it with: isochrone up {file}")


def _find(directory: Path, models: Path | None) -> tuple[Path, list[FoundModel]]:
    """The first directory that contains models, and its models."""
    places = [models] if models is not None else [directory / "models", directory]
    for place in places:
        if place.is_dir() and (found := _models_in(place)):
            return place, found
    raise ApiFailed(
        f"no models in {' or '.join(map(str, places))}: expected directories such as detector/1/model.onnx; name the "
        "model repository with --models"
    )


def _models_in(place: Path) -> list[FoundModel]:
    repository = Repository([place])
    found = []
    for name, entry in repository.scan().items():
        if not entry.versions and not (place / name / CONFIG_FILE).exists() and entry.problem is None:
            continue  # not a model
        try:
            description = repository.read(name)
        except IsochroneError as error:
            found.append(FoundModel(name, entry.versions, problem=error.message))
            continue
        steps = description.config.ensemble_scheduling.step
        stages = tuple(dict.fromkeys(step.model_name for step in steps))
        found.append(FoundModel(name, entry.versions, stages))
        description.release()
    return without_missing_steps(found)


def _relative(repository: Path, directory: Path, given: Path | None) -> str:
    """The repository's path relative to the file, unless it was given as an absolute path."""
    if given is not None and given.is_absolute():
        return str(given)
    path = os.path.relpath(repository.resolve(), directory.resolve())
    return path if path.startswith(".") else f"./{path}"
