"""Imports the runtime of an optional backend, or says which extra to install."""

from __future__ import annotations

import importlib
from typing import Any

from isochrone.errors import ConfigError


def optional_runtime(package: str, extra: str, where: str) -> Any:
    """The module ``package``; ``where`` is the configuration whose backend needs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        expected = f"{package} to be installed (pip install isochrone[{extra}])"
        raise ConfigError(where, "backend", expected, str(error)) from error
