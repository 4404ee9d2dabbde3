"""Flags of model repositories and of caches, for workers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from isochrone.models.repository.layout import is_model
from isochrone.models.sources.locations import Location, RepositoryUrl, parse_location
from isochrone.worker.server.failures import StartFailed

ModelCacheOption = Annotated[
    Path | None,
    typer.Option(
        help="Directory of models fetched from URLs, shared by all workers of the machine.",
        envvar="ISOCHRONE_MODEL_CACHE",
        show_default="~/.cache/isochrone/models",
    ),
]
ModelCacheBytesOption = Annotated[
    str | None,
    typer.Option(
        help="Largest size of that directory, such as 20GiB; what is loaded always stays.",
        metavar="BYTES",
        envvar="ISOCHRONE_MODEL_CACHE_BYTES",
        show_default="64 GiB or 80 % of the disk, whichever is less",
    ),
]
CacheConfigOption = Annotated[
    str, typer.Option(help="Response cache, as Triton spells it: local,size=BYTES.", show_default="off")
]


def read_repositories(given: Sequence[str]) -> tuple[Location, ...]:
    """The directories and URLs, of which there must be one. Raises ``StartFailed``."""
    repositories = tuple(parse_location(text) for text in given)
    if not repositories:
        raise StartFailed("no model repository; name one: isochrone serve ./models")
    for path in repositories:
        if isinstance(path, RepositoryUrl):
            continue
        if not path.is_dir():
            raise StartFailed(f"model repository {path} is not a directory")
        if is_model(path):
            parent = Path(os.path.abspath(path)).parent
            raise StartFailed(f"{path} looks like a model; give its parent directory: isochrone serve {parent}")
    return repositories


def model_cache_directory(repositories: Sequence[Location], given: Path | None) -> Path | None:
    """The directory of the model cache, by the XDG base directory specification; None: no repository is remote."""
    if not any(isinstance(each, RepositoryUrl) for each in repositories):
        return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (given or Path(base if os.path.isabs(base) else "~/.cache", "isochrone", "models")).expanduser().absolute()


def read_model_cache_bytes(text: str | None) -> int | None:
    """Bytes, or a quantity as in fleet.yaml: ``20GiB``."""
    if text is None:
        return None
    # Imported here: most workers start without fleet.yaml's types.
    from pydantic_core import PydanticCustomError

    from isochrone.control.fleet.settings.quantities import parse_bytes

    try:
        amount = parse_bytes(int(text) if text.isdecimal() else text)
    except PydanticCustomError as error:
        raise StartFailed(f"--model-cache-bytes: {error.message()}, given {text!r}") from None
    if not amount:
        raise StartFailed(f"--model-cache-bytes: expected at least 1 byte, given {text!r}")
    return amount


def read_cache_bytes(text: str) -> int:
    """``local,size=BYTES``."""
    if not text:
        return 0
    name, _, rest = text.partition(",")
    key, _, value = rest.partition("=")
    if name != "local" or key.strip() != "size" or not value.strip().isdigit():
        raise StartFailed(f"--cache-config: expected local,size=BYTES, given {text!r}")
    return int(value)
