"""A development authority in a directory: what ``isochrone certs`` makes, issues and rotates.

    DIR/ca.crt           the authorities to trust; two while one replaces the other
    DIR/ca.key           the key of the one that signs
    DIR/next-ca.key      the key of the one that will sign after the next step
    DIR/NAME/tls.crt     a certificate, with the file names of Kubernetes and cert-manager
    DIR/NAME/tls.key     its key

Files are replaced one by one, each as a whole; keys are readable by their owner alone. Between a key and its
certificate a reader may see one of them new: servers keep what they have until both fit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from isochrone.errors import AlreadyExists, ConfigError, FlagError, NotFound
from isochrone.secure.certificates import minting
from isochrone.secure.certificates.minting import Facts, Leaf, Minted
from isochrone.secure.certificates.stages import Stage, Step, next_step, stage_of
from isochrone.secure.certificates.subject_names import SubjectNames
from isochrone.whole_files import write_whole

TRUSTED, KEY, NEXT_KEY = "ca.crt", "ca.key", "next-ca.key"
LEAF, LEAF_KEY = "tls.crt", "tls.key"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PUBLIC, _PRIVATE = 0o644, 0o600


@dataclass(frozen=True, slots=True)
class Held:
    """A certificate of the directory. ``name`` "": an authority."""

    name: str
    path: Path
    facts: Facts
    leaf: Leaf | None = None


class Authority:
    """The authority of a directory."""

    def __init__(self, directory: Path) -> None:
        """Raises ``NotFound`` where ``create`` has made none."""
        self._directory = directory
        if not (directory / TRUSTED).exists() or not (directory / KEY).exists():
            raise NotFound(f"no authority in {directory}; make one: isochrone certs init {directory}")

    @classmethod
    def create(cls, directory: Path, lifetime: timedelta, now: datetime) -> Authority:
        """Raises ``AlreadyExists``: a new key would make every certificate of the old one worthless."""
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory):
            if (directory / KEY).exists() or (directory / TRUSTED).exists():
                raise AlreadyExists(
                    f"{directory} has an authority already; renew its certificates: isochrone certs rotate {directory}"
                )
            made = minting.make_authority(lifetime, now)
            write_whole(directory / KEY, made.key, _PRIVATE)
            write_whole(directory / TRUSTED, made.certificate, _PUBLIC)
        return cls(directory)

    def issue(self, leaf: Leaf, now: datetime) -> Held:
        """A certificate in DIR/NAME, in place of one that is there."""
        if not _NAME.fullmatch(leaf.name):
            raise FlagError("NAME", "letters, digits, '.', '_' and '-'", repr(leaf.name))
        if not (leaf.is_server or leaf.is_client):
            raise FlagError("--host", "a name for a server, or --client for a client", "neither")
        if not leaf.names.uris and not leaf.names.dns and not leaf.names.addresses:
            leaf = replace(leaf, names=SubjectNames(dns=(leaf.name.lower(),)))
        with _locked(self._directory):
            return self._issue(self._signer(), leaf, now)

    def renew(self, now: datetime) -> list[Held]:
        """Each certificate again, with a new key, from the authority that signs."""
        with _locked(self._directory):
            return self._renew(now)

    def replace(self, lifetime: timedelta, now: datetime) -> Step:
        """Take the next step to another authority (``stages``)."""
        with _locked(self._directory):
            has_old = any(not self._is_current(held.path) for held in self._leaves())
            step = next_step(self._stage(), has_old_leaves=has_old)
            if step is Step.INTRODUCE:
                self._introduce(lifetime, now)
            elif step is Step.SIGN:
                self._sign(now)
            else:
                write_whole(self._directory / TRUSTED, self._signer().certificate, _PUBLIC)
            return step

    def listing(self) -> list[Held]:
        """The authorities, the signing one first, and the certificates by name."""
        signer = self._signer().certificate
        path = self._directory / TRUSTED
        trusted = sorted(self._trusted(), key=lambda each: each != signer)
        return [*(Held("", path, minting.facts_of(each)) for each in trusted), *self._leaves()]

    def stage(self) -> Stage:
        return self._stage()

    # The steps. Each leaves files that ``stage_of`` understands, wherever it is interrupted.

    def _introduce(self, lifetime: timedelta, now: datetime) -> None:
        made = minting.make_authority(lifetime, now)
        bundle = b"".join((*self._trusted(), made.certificate))
        # First what it is trusted by: a key without its certificate could not sign.
        write_whole(self._directory / TRUSTED, bundle, _PUBLIC)
        write_whole(self._directory / NEXT_KEY, made.key, _PRIVATE)

    def _sign(self, now: datetime) -> None:
        following = self._directory / NEXT_KEY
        if following.exists():
            following.replace(self._directory / KEY)
        self._renew(now)

    # Files.

    def _stage(self) -> Stage:
        return stage_of(has_next_key=(self._directory / NEXT_KEY).exists(), trusted=len(self._trusted()))

    def _trusted(self) -> list[bytes]:
        path = self._directory / TRUSTED
        try:
            return minting.certificates_in(path.read_bytes())
        except ValueError as error:
            raise ConfigError(str(path), "certificates", "PEM certificates", str(error)) from None

    def _signer(self) -> Minted:
        path = self._directory / KEY
        try:
            key = path.read_bytes()
            certificate = minting.certificate_of_key(self._trusted(), key)
        except ValueError as error:
            raise ConfigError(str(path), "key", "a PEM key", str(error)) from None
        if certificate is None:
            raise ConfigError(str(path), "key", f"the key of a certificate in {TRUSTED}", "another key")
        return Minted(certificate, key)

    def _leaves(self) -> list[Held]:
        found = []
        for path in sorted(self._directory.glob(f"*/{LEAF}")):
            try:
                pem = path.read_bytes()
                leaf = replace(minting.leaf_of(pem), name=path.parent.name)
                found.append(Held(leaf.name, path, minting.facts_of(pem), leaf))
            except ValueError as error:
                raise ConfigError(str(path), "certificate", "one that isochrone certs has made", str(error)) from None
        return found

    def _is_current(self, path: Path) -> bool:
        return minting.is_signed_by(path.read_bytes(), self._signer().certificate)

    def _renew(self, now: datetime) -> list[Held]:
        signer = self._signer()
        return [self._issue(signer, held.leaf, now) for held in self._leaves() if held.leaf is not None]

    def _issue(self, signer: Minted, leaf: Leaf, now: datetime) -> Held:
        if minting.facts_of(signer.certificate).expires <= now:
            raise ConfigError(
                str(self._directory / TRUSTED),
                "authority",
                "one that is valid",
                "one that has expired; make another directory",
            )
        made = minting.issue(signer, leaf, now)
        folder = self._directory / leaf.name
        folder.mkdir(exist_ok=True)
        write_whole(folder / LEAF_KEY, made.key, _PRIVATE)
        write_whole(folder / LEAF, made.certificate, _PUBLIC)
        return Held(leaf.name, folder / LEAF, minting.facts_of(made.certificate), leaf)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Two commands at a time would mix keys and certificates of two authorities."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
