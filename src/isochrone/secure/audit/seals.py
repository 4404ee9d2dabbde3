"""The seal of a log: the last record that is on the disk, beside the segments.

A log alone cannot show that its end was cut off. The seal names the end, and with a key nobody else can write one. It
is written after each batch, when the batch is on the disk: a seal never names more than there is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal

import msgspec

from isochrone.secure.audit.keys import AuditKey
from isochrone.secure.audit.segments import NO_LINK, SEAL, write_all

#: What a seal is to its key.
State = Literal["valid", "forged", "no key", "not keyed"]


class Seal(msgspec.Struct, frozen=True):
    """``log`` is the log's own id: the seal of another log does not fit."""

    log: str
    segment: int
    sequence: int
    hash: str
    #: "": the log has no key.
    mac: str = ""

    def state(self, key: AuditKey | None) -> State:
        if key is None:
            return "no key"
        if not self.mac:
            return "not keyed"
        return "valid" if key.is_seal(_sealed(self), self.mac) else "forged"


def _sealed(seal: Seal) -> bytes:
    return f"{seal.log} {seal.segment} {seal.sequence} {seal.hash}".encode()


def sealed(log: str, segment: int, sequence: int, digest: str, key: AuditKey | None) -> Seal:
    seal = Seal(log, segment, sequence, digest)
    return seal if key is None else msgspec.structs.replace(seal, mac=key.seal(_sealed(seal)))


def write_seal(directory: Path, seal: Seal) -> None:
    """Replaces the seal at once: a crash leaves this one or the one before. Raises ``OSError``, and leaves that one."""
    unfinished = directory / f".{SEAL}.new"
    try:
        opened = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_LINK, 0o640)
        try:
            write_all(opened, msgspec.json.encode(seal) + b"\n")
            os.fdatasync(opened)
        finally:
            os.close(opened)
        unfinished.replace(directory / SEAL)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def read_seal(directory: Path) -> Seal | None:
    """None: there is none, or nothing that is one. Raises ``OSError``."""
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode((directory / SEAL).read_bytes(), type=Seal)
    return None
