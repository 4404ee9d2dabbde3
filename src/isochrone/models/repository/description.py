"""A model as a scan finds it, and as it is described before it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.repository.encrypted.copies import DecryptedVersion
from isochrone.models.repository.overrides import OverrideDirectory
from isochrone.models.repository.signed.copies import PrivateCopy
from isochrone.models.signature import Signature
from isochrone.models.sources.cache.trees import Tree
from isochrone.models.sources.locations import Location
from isochrone.secure.signing.signed_version import Provenance


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that a scan found. Fingerprints stay equal as long as no file changes."""

    name: str
    directory: Location
    versions: tuple[int, ...]
    config_fingerprint: str
    """Of everything in the model's directory outside its versions: config.pbtxt, labels, warm-up data."""
    version_fingerprints: Mapping[int, str]
    problem: ConfigError | None = None
    """Why the scan could not read this model. The other fields are then meaningless, and loaded versions stay."""


@dataclass(frozen=True, slots=True)
class ModelObject:
    """The code of a model that exists in memory only: nothing of it is read from a directory."""

    make: Callable[[Any], Any]
    """Takes the context of one instance; returns its loaded object, with ``infer`` and perhaps ``close``."""
    digest: str
    """Stands for the files of the version."""
    example: Mapping[str, Any] | None = None
    """Inputs by name, without the batch's axis, in the shapes of requests; None: warm-up uses zeros."""
    outputs_source: str = "as outputs declares"
    """Where the outputs' types are from, for errors."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The description of a model before it is loaded."""

    name: str
    directory: Path
    config: model_config_pb2.ModelConfig
    """Completed and validated, for the newest version (see ``of_version``). Must not be changed."""
    signature: Signature
    assumed: tuple[str, ...]
    """Sentences for the log about the assumptions of completion."""
    versions: Mapping[int, Path]
    """The versions to serve, ascending, each with its directory."""
    ignored: tuple[str, ...]
    """Entries of the directory that look like versions but are none."""
    overrides: OverrideDirectory | None = None
    """The files of a load request; removed with the description, or by ``release``."""
    differing: Mapping[int, tuple[model_config_pb2.ModelConfig, Signature]] = field(default_factory=dict)
    """Versions whose completed configuration differs from that of the newest version."""
    stated: Mapping[int, model_config_pb2.ModelConfig] = field(default_factory=dict)
    """Versions whose model completes its configuration itself: the configuration before that, for the digest. The rest
    follows from the model's files, so nobody needs to run the model to know the digest."""
    tree: Tree | None = None
    """The fetched files of a remote model, which stay in the cache as long as this description."""
    model_object: ModelObject | None = None
    """A model without files. The directories are then only where its code looks for files."""
    stated_source: str = ""
    """Where the configuration is from, for errors; "": config.pbtxt in the directory."""

    provenance: Mapping[int, Provenance] = field(default_factory=dict)
    """Who signed each version; empty where nobody must."""
    private_copy: PrivateCopy | None = None
    """The verified files, which are removed with the last description that refers to them."""

    decrypted: Mapping[int, DecryptedVersion] = field(default_factory=dict)
    """The plain files of encrypted versions, to which ``versions`` leads then. They are removed with the last
    description that refers to them."""

    def stored(self, version: int) -> Path:
        """The directory of a version as it is stored: the digest is of these bytes."""
        found = self.decrypted.get(version)
        return self.versions[version] if found is None else found.stored

    @property
    def config_source(self) -> str:
        """The file of the configuration, or what stands in for it, for errors."""
        return self.stated_source or str(self.directory / "config.pbtxt")

    def of_version(self, version: int) -> ModelDescription:
        """The description of one version, independent of the other versions."""
        if version not in self.differing:
            return self
        config, signature = self.differing[version]
        return replace(self, config=config, signature=signature)

    def digested_config(self, version: int) -> model_config_pb2.ModelConfig:
        """The configuration that the digest of a version covers."""
        return self.stated.get(version) or self.of_version(version).config

    def release(self) -> None:
        """Remove files that were written for this description alone; nothing of the repository is touched."""
        if self.overrides is not None:
            self.overrides.remove()
        if self.tree is not None:
            self.tree.release()
