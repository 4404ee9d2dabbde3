"""The recommended config.pbtxt of a model, and how it replaces the old one.

The new file has what the old one states, with other instances, threads and preferred batches: what completion adds is
not written, so that it goes on to follow the model's files. A model without a config.pbtxt gets its completed one.

Files are prepared in a hidden directory beside the model's: an unfinished file in the model's own directory would make
workers that poll the repository load the model again.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from isochrone.errors import ConfigError
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.configuration.validation import validate
from isochrone.models.repository.config_files import CONFIG_FILE
from isochrone.models.repository.description import ModelDescription
from isochrone.optimize.profiling.changed_config import with_instances, with_preferred_batch
from isochrone.optimize.profiling.search.space import Configuration

#: The repository's reader knows config.pbtxt and configs/ only, and no version is called so.
_BEFORE = f"{CONFIG_FILE}.before-profile"
#: A directory whose name begins with a dot is no model.
_STAGING = ".isochrone-profile-"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """``text`` is the whole new file, ``diff`` what it changes; "" if it changes nothing."""

    path: Path
    text: str
    diff: str


def recommend(description: ModelDescription, configuration: Configuration, reason: str) -> Recommendation:
    """``reason``: a line for the head of the file."""
    path = description.directory / CONFIG_FILE
    completed = description.config
    stated = completed
    if path.is_file():
        stated = parse_text(path.read_bytes(), str(path))[0]
    changed = _changed(stated, completed, configuration)
    validate(_changed(completed, completed, configuration), str(path))
    before, after = text_format.MessageToString(stated), text_format.MessageToString(changed)
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), CONFIG_FILE, f"{CONFIG_FILE} (recommended)"
    )
    return Recommendation(path, f"# {reason}\n{after}", "".join(lines))


def _changed(config: Any, completed: Any, configuration: Configuration) -> Any:
    # A file that leaves the backend to completion does not name the parameter of its threads.
    named = type(completed)()
    named.CopyFrom(config)
    named.backend, named.platform = completed.backend, completed.platform
    changed = with_instances(named, configuration.threads, configuration.instances)
    changed.backend, changed.platform = config.backend, config.platform
    if completed.max_batch_size > 0:
        changed.max_batch_size = completed.max_batch_size
        changed = with_preferred_batch(changed, configuration.batch)
    return changed


def write(recommendation: Recommendation) -> Path | None:
    """Replaces the file at once, and keeps the old one beside it; its path, or None if there was none."""
    path = Path(os.path.realpath(recommendation.path))
    model = Path(os.path.realpath(recommendation.path.parent))
    try:
        # A link leads elsewhere, maybe to another file system: renames work beside the file only.
        with _staging(model.parent if path.parent == model else path.parent) as staging:
            new, old = staging / "new", staging / "old"
            with new.open("w", encoding="utf-8") as file:
                file.write(recommendation.text)
                file.flush()
                os.fsync(file.fileno())
            kept = None
            if path.exists():
                shutil.copymode(path, new)
                shutil.copy2(path, old)
                kept = _free_name(path)
                os.rename(old, kept)
            os.replace(new, path)
    except OSError as error:
        given = error.strerror or str(error)
        raise ConfigError(str(path), "file", "a file that can be written", given) from None
    return kept


def _free_name(path: Path) -> Path:
    """Earlier copies stay: the first one has the comments of its author."""
    kept, number = path.with_name(_BEFORE), 1
    while kept.exists():
        number += 1
        kept = path.with_name(f"{_BEFORE}-{number}")
    return kept


@contextlib.contextmanager
def _staging(repository: Path) -> Iterator[Path]:
    staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=repository))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
