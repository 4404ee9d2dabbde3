"""Runtimes that write parts of a model to a disk, which decrypted models must not reach."""

from __future__ import annotations

from isochrone.errors import ConfigError
from isochrone.models.configuration.completion import model_file
from isochrone.models.repository.description import ModelDescription
from isochrone.models.repository.encrypted.in_memory import is_in_memory
from isochrone.worker.backends.torch.packages import EXTRACTED_TO, compiled_target


def check_stays_in_memory(description: ModelDescription, version: int, backend: str) -> None:
    """Raises ``ConfigError`` for an encrypted version whose runtime would put its plain text on a disk."""
    decrypted = description.decrypted.get(version)
    if decrypted is None or not decrypted.only_in_memory or backend != "torch":
        return
    path = model_file(description.config, description.versions[version])
    if compiled_target(path) is not None and not is_in_memory(str(EXTRACTED_TO)):
        expected = f"an exported program: torch extracts AOTInductor packages to {EXTRACTED_TO}, which is a disk"
        raise ConfigError(f"{decrypted.stored}/{path.name}", "encrypted model", expected, "a package")
