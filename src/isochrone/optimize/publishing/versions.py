"""Writes a version or a model: into a new directory of the repository, which is renamed as the last step, after its
report: a version without one would pass for the author's own.

A directory whose name begins with a dot is no model, and being beside the models it changes the fingerprint of none: a
worker that polls the repository sees the result whole, or not at all. What a killed command left there is removed by
the next one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from isochrone.errors import ConfigError
from isochrone.models.repository.versions import find_versions, version_number
from isochrone.optimize.publishing.places import Place
from isochrone.optimize.trials.origins import REPORTS
from isochrone.whole_directories import remove_leftovers, staging, sync, sync_tree

_STAGING = ".isochrone-optimize-"


def publish(place: Place, built: Path, reports: dict[str, str]) -> tuple[Path, Path]:
    """Writes the model directory ``built``, or its version 1 as the next version; returns its and the report's paths.

    The report is not in the model's directory: a file there changes the digest of a version, or makes workers that poll
    load the model again.
    """
    remove_leftovers(place.repository, _STAGING)
    present = () if place.is_new else find_versions(place.directory).present
    version = max(present, default=0) + 1
    target = place.directory if place.is_new else place.directory / str(version)
    report = place.repository / REPORTS / place.model / str(version)
    with staging(place.repository, _STAGING) as made:
        written = made / "report"
        written.mkdir()
        for name, text in reports.items():
            _write(written / name, text.encode())
        model = made / "model"
        if place.is_new:
            _copy_model(built, model)
        else:
            _copy_files(built / "1", model)
        sync_tree(made)
        _move_report(written, report)
        try:
            os.rename(model, target)
        except OSError as error:
            shutil.rmtree(report, ignore_errors=True)
            expected = "a directory that does not exist yet"
            raise ConfigError(str(target), "directory", expected, error.strerror or str(error)) from None
        sync(target.parent)
    return target, report


def _move_report(written: Path, report: Path) -> None:
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(report, ignore_errors=True)  # of a version that was removed since
        os.rename(written, report)
        sync(report.parent)
    except OSError as error:
        given = error.strerror or str(error)
        raise ConfigError(str(report), "directory", "a directory for the report", given) from None


def _copy_model(built: Path, target: Path) -> None:
    target.mkdir()
    for each in built.iterdir():
        if version_number(each.name) is not None or each.is_dir():
            _copy_files(each, target / each.name)
        else:
            shutil.copyfile(each, target / each.name)


def _copy_files(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=shutil.copyfile)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
