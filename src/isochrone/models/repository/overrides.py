"""Files of a load request (Triton's ``file:<version>/<name>`` parameters), in a private temporary directory.

Names come from the network: none may lead out of the directory.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

from isochrone.errors import ConfigError, Internal

_LOAD_REQUEST = "load request"


class OverrideDirectory:
    """A temporary model directory, readable by this user alone; removed on ``remove`` or when nothing refers to it."""

    def __init__(self, model: str, files: Mapping[str, bytes]) -> None:
        try:
            # mkdtemp makes it with mode 0700.
            root = Path(tempfile.mkdtemp(prefix="isochrone-override-"))
        except OSError as error:
            raise Internal(f"no temporary directory for the files of model '{model}': {error}") from None
        self._finalizer = weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        self.model = root / model
        try:
            self.model.mkdir()
            for name, content in files.items():
                self._write(name, content)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        self._finalizer()

    def _write(self, name: str, content: bytes) -> None:
        key = f"file:{name.removeprefix('file:')}"
        parts = name.removeprefix("file:").split("/")
        expected = "'file:<version>/<name>' inside the model's directory"
        if any(part in ("", ".", "..") or not part.isprintable() or "\\" in part for part in parts):
            raise ConfigError(_LOAD_REQUEST, key, expected, repr(name))
        path = self.model.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Exclusive, so that "a" and "file:a" together do not silently become one of them.
            with path.open("xb") as file:
                file.write(content)
        except (OSError, ValueError) as error:
            given = getattr(error, "strerror", None) or str(error)
            raise ConfigError(_LOAD_REQUEST, key, expected, given) from None
