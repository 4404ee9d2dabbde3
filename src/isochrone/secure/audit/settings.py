"""What ``--audit`` and its companions say."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from isochrone.errors import FlagError
from isochrone.secure.audit.keys import read_key
from isochrone.secure.audit.redaction import read_rules

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: Bytes of a segment: what retention deletes at once.
_SEGMENT_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """One process's audit log."""

    #: Of all logs; the process's own is a directory in it.
    directory: Path
    #: The process, and its directory.
    name: str
    #: Whether requests for inference are recorded, not changes alone.
    requests: bool = False
    key_file: str = ""
    #: Whole segments older than this are deleted; 0: none ever is.
    keep_days: float = 0.0
    #: (field, way) of personal data.
    redact: tuple[tuple[str, str], ...] = ()
    segment_bytes: int = _SEGMENT_BYTES

    @property
    def log_directory(self) -> Path:
        return self.directory / self.name

    def of_process(self, number: int) -> AuditSettings:
        """For one of several processes that serve as one."""
        return replace(self, name=f"{self.name}.{number}")


def read_audit(
    directory: str, requests: bool, key: str, keep_days: float, redact: str, name: str, role: str
) -> AuditSettings | None:
    """Of the command line's words; None: nothing is recorded. Raises ``FlagError``.

    ``name``: of the process; "": its host's with ``role``.
    """
    if not directory:
        for flag, given in (
            ("--audit-requests", requests),
            ("--audit-key", key),
            ("--audit-keep", keep_days),
            ("--audit-redact", redact),
        ):
            if given:
                raise FlagError(flag, "--audit DIRECTORY beside it", str(given))
        return None
    name = name or f"{socket.gethostname()}-{role}"
    if not _NAME.fullmatch(name):
        raise FlagError("--name", "letters, digits, '.', '_' and '-' for the directory of an audit log", name[:80])
    has_key = read_key(key) is not None
    return AuditSettings(Path(directory), name, requests, key, keep_days, read_rules(redact, has_key))
