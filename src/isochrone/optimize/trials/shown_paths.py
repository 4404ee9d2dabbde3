"""The paths in the reasons of failed trials: people know their own files, not the copies that are tried. Pure."""

from __future__ import annotations

import re
from pathlib import Path

from isochrone.optimize.trials.source import CONFIG_FILE, Source

#: The directory of a workbench with a model for each candidate.
MODELS = "models"


def with_known_paths(text: str, folder: Path, source: Source, name: str) -> str:
    """``folder``: the directory of the workbench, whose candidates are models called ``name``."""
    inside = re.escape(str(folder))
    model = f"{inside}/{MODELS}/[^/]+/{re.escape(name)}"
    own = source.directory
    known = (
        (f"{model}/1/{re.escape(source.filename)}", str(source.file)),
        (f"{model}/{re.escape(CONFIG_FILE)}", CONFIG_FILE if own is None else str(own / CONFIG_FILE)),
        (f"{model}/1(?![^/])", str(source.file.parent)),
        (model, str(source.file.parent if own is None else own)),
        (rf"{inside}/(?:float|\d+)\.onnx", str(source.file)),
        (rf"{inside}/(?:calibration|held_out)\.npz", "the data"),
        (inside, str(source.file.parent)),
    )
    for pattern, shown in known:
        text = re.sub(pattern, shown.replace("\\", r"\\"), text)
    return text
