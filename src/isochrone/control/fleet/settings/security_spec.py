"""The section ``security`` of fleet.yaml: access, the audit log, certificates, signatures, encryption, the sandbox."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from isochrone.control.fleet.settings.quantities import Bytes, FilePath, Words, empty, file_path
from isochrone.errors import FlagError
from isochrone.secure.sandbox.settings import read_grants
from isochrone.settings.sections import Section
from isochrone.settings.validator_errors import wrong


def _absolute_path(given: str) -> str:
    if given and not given.startswith("/"):
        raise wrong("an absolute path", repr(given))
    return given


class Tls(Section):
    """Certificates as PEM files, which every machine of the fleet has at the same place. The files must exist."""

    cert: FilePath | None = None
    """Certificate of all processes, as servers and as clients. It has the addresses of the machine, or server_name."""
    key: FilePath | None = None
    """Key of the certificate."""
    ca: FilePath | None = None
    """Authorities by which the fleet's processes verify each other. Workers answer no client without a certificate of
    these."""
    server_name: str = ""
    """A name that the certificate of every process has, in place of its address."""
    client_ca: FilePath | None = None
    """Callers of gateways must present a certificate that this authority signed. By default they need none."""
    mode: Literal["required", "permissive"] = "required"
    """permissive: ports of workers and gateways also accept plain connections, and workers without TLS are called. For
    the time in which a fleet changes to TLS, or from it."""


Redacted = Literal["hash", "drop", "truncate"]


class AuditRedaction(Section):
    """Personal data in the audit log, by field. hash: the same hash for the same value, made with the key; drop:
    nothing is left; truncate: three characters are left, of an address its network."""

    name: Redacted | None = None
    """The name of an actor who has proved it."""
    address: Redacted | None = None
    """The address of an actor."""
    agent: Redacted | None = None
    """The agent that sent a request."""
    request_id: Redacted | None = None
    """The id of a request."""
    user: Redacted | None = None
    """The user that a caller of the control API states."""
    reason: Redacted | None = None
    """The reason of an abort."""

    @property
    def rules(self) -> tuple[tuple[str, str], ...]:
        """(field, way) of those that are redacted."""
        return tuple((field, how) for field in type(self).model_fields if (how := getattr(self, field)) is not None)


class Audit(Section):
    """The audit log of all processes that the fleet starts."""

    directory: Annotated[str, AfterValidator(_absolute_path)] = ""
    """Absolute path of the directory of the logs, one for each process, on the machine of the process. The default is
    no audit log."""
    requests: bool = False
    """Whether gateways also record which agent calls which model when. While such a log cannot be written, its gateway
    refuses requests."""
    key: FilePath | None = None
    """File with the key that seals the logs, 16 bytes or more, on the machine of each process. Without it, somebody who
    may write the directory can rewrite a log."""
    keep_days: Annotated[float, Field(ge=0, le=36_500)] = 0.0
    """Days after which records are deleted; 0: never."""
    redact: AuditRedaction = AuditRedaction()
    """Personal data that is hashed, dropped or truncated before it is recorded."""


def _sandbox_of(given: object) -> object:
    """``sandbox: true`` has all defaults."""
    return {"enabled": given} if isinstance(given, bool) else given


class Sandbox(Section):
    """How workers confine python models; see docs/sandbox.md. true: all defaults; false: they do not."""

    enabled: bool = True
    """Whether they do."""
    best_effort: bool = False
    """Also start workers on machines whose kernel lacks a part of it."""
    memory: Bytes = 0
    """Memory of one process of a model. 0: half of the machine's."""
    allow: Words = ()
    """What models may do beside computing, as GRANT=MODEL with the grants network and processes."""

    @field_validator("allow", mode="after")
    @classmethod
    def _are_grants(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        try:
            read_grants(allow)
        except FlagError as error:
            raise wrong(error.expected, error.given) from None
        return allow


class Signatures(Section):
    """Who must have signed the versions that workers load."""

    trust: Annotated[tuple[FilePath, ...], Field(strict=False)] = ()
    """PEM files with public keys, or with certificates of authorities. Workers of this fleet then load only versions
    that one of them signed (isochrone sign). Each machine with workers needs the files at the same path. Empty:
    versions need no signature."""


def _key_source(given: str) -> str:
    kind, _, rest = given.partition(":")
    if kind not in ("file", "env", "command") or not rest.strip():
        # A key that is given in place of its source must not be shown.
        raise wrong("file:PATH, env:NAME or command:PROGRAM ARGUMENTS", "something else")
    if kind == "file":
        file_path(rest)
    return given


_KeySource = Annotated[str, AfterValidator(_key_source)]


class Encryption(Section):
    """Encrypted model versions."""

    keys: Annotated[tuple[_KeySource, ...], Field(strict=False)] = ()
    """Where workers get the keys from: file:PATH, env:NAME or command:PROGRAM ARGUMENTS (isochrone encrypt). Paths of
    files are relative to this file. Each machine with workers needs the file, the variable or the program. Empty:
    workers load no encrypted version."""

    required: bool = False
    """Whether workers refuse versions that are not encrypted. Needs keys."""

    @model_validator(mode="after")
    def _has_keys(self) -> Encryption:
        if self.required and not self.keys:
            raise wrong("keys beside required", "none")
        return self


class Security(Section):
    """Access to the fleet, the record of it, and what may run (docs/hardening.md)."""

    sandbox: Annotated[Sandbox | None, BeforeValidator(_sandbox_of)] = None
    """Run every python model in a confined process of its own, and load TorchScript and AOTInductor packages only of
    models with trust. By default, workers that check callers (access and key) do. A change restarts the workers."""

    audit: Audit = Audit()
    """The audit log."""
    key: FilePath | None = None
    """The fleet's key: a file of 16 bytes or more, the same on each machine, as 'openssl rand -hex 32' writes one. Only
    processes that have it belong to the fleet (docs/fleet-key.md)."""
    key_required: bool = True
    """Whether records without a seal of the key are refused. false: they are accepted too, while a fleet gets its key
    or loses it."""
    tls: Tls = Tls()
    """Certificates of all processes of the fleet, and TLS between them (docs/tls.md)."""
    access: FilePath | None = None
    """Who may do what: the access file (docs/access.md). With key, controllers read it, and every process of the fleet
    follows it; without key, gateways and controllers alone check callers, and each machine needs the file. Without
    this, every caller may do everything."""
    signatures: Annotated[Signatures, BeforeValidator(empty)] = Signatures()
    """Signatures of model versions."""

    encryption: Annotated[Encryption, BeforeValidator(empty)] = Encryption()
    """Encryption of model versions."""

    @property
    def guards_workers(self) -> bool:
        """Whether workers and metrics ports check callers."""
        return self.access is not None and self.key is not None

    @property
    def confines(self) -> bool:
        """Whether workers confine python models."""
        return self.sandbox.enabled if self.sandbox is not None else self.guards_workers
