"""Where a result is written, checked before the search begins."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from isochrone.errors import ConfigError
from isochrone.models.repository.names import validate_model_name
from isochrone.optimize.trials.origins import REPORTS
from isochrone.optimize.trials.source import Source


@dataclass(frozen=True, slots=True)
class Place:
    repository: Path
    model: str
    is_new: bool
    """Whether the result is a model of its own, with its configuration, and not a version of a model that is there."""

    @property
    def directory(self) -> Path:
        return self.repository / self.model


def place_of(source: Source, output: Path | None, new_model: str) -> Place | None:
    """None: a file alone without ``--output``, so nothing is written."""
    if output is not None and new_model:
        raise ConfigError("--new-model", "name", "either --output or --new-model", "both")
    if output is not None:
        place = Place(output.absolute().parent, output.name, True)
        flag = "--output"
    elif source.directory is None:
        if new_model:
            raise ConfigError("--new-model", "name", "a model of a repository; --output DIR writes a file's", new_model)
        return None
    elif new_model:
        place = Place(source.directory.parent, new_model, True)
        flag = "--new-model"
    else:
        place = Place(source.directory.parent, source.name, False)
        flag = "--model-repository"
    if place.is_new:
        validate_model_name(place.model)
        if os.path.lexists(place.directory):
            raise ConfigError(flag, str(place.directory), "a directory that does not exist yet", "one that does")
    if not place.repository.is_dir():
        raise ConfigError(flag, str(place.repository), "a directory to write into", "nothing there")
    reports = place.repository / REPORTS
    existing = [each for each in (reports, reports / place.model) if os.path.lexists(each)]
    for written in dict.fromkeys([place.repository, *([] if place.is_new else [place.directory]), *existing]):
        if not written.is_dir():
            raise ConfigError(flag, str(written), "a directory, for reports", "a file")
        if not os.access(written, os.W_OK | os.X_OK):
            raise ConfigError(flag, str(written), "a directory that this user may write into", "no permission")
    return place
