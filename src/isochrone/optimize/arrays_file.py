"""Reads the arrays of an .npz file that somebody gives for a model's inputs."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from isochrone.errors import ConfigError

_MOST_BYTES = 4 << 30


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays by name. Never unpickles; a file that cannot be read is one error, whatever is wrong with it."""
    expected = "an .npz file with one array for each input of the model (numpy.savez)"
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(each.file_size for each in archive.infolist())
        if size > _MOST_BYTES:
            raise ConfigError(str(path), "file", "at most 4 GiB of arrays; fewer rows suffice", f"{size} bytes")
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except ConfigError:
        raise
    except Exception as error:  # a damaged header raises whatever numpy's tokenizer does, damaged bytes what zlib does
        raise ConfigError(str(path), "file", expected, str(error) or type(error).__name__) from None
