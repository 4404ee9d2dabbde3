"""Encrypts versions in the repositories of tests."""

from __future__ import annotations

from pathlib import Path

from isochrone.models.repository.encrypted.writing import encrypt_version
from isochrone.secure.encryption.model_keys import ModelKeys

#: Nobody else has them.
KEY, OTHER_KEY = "1f" * 32, "2e" * 32


def write_key(directory: Path, name: str = "model.key", key: str = KEY) -> str:
    """A source of keys."""
    (directory / name).write_text(key)
    return f"file:{directory / name}"


def encrypt_model(source: str, model: Path, version: int = 1, target: int | None = None) -> Path:
    """Encrypts a version in its place; returns its directory."""
    return encrypt_version(model, version, target or version, ModelKeys([source])).directory
