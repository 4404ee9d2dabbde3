"""Says of an error of a confined model that the sandbox is its likely reason."""

from __future__ import annotations

import errno

from isochrone.secure.sandbox.confinement import Confinement

#: Of this process; None: it is not confined.
confinement: Confinement | None = None


def hint(error: BaseException) -> str:
    """What to add to the text of an error; "" where the sandbox has no part in it."""
    if confinement is None:
        return ""
    if isinstance(error, MemoryError):
        return f" (the sandbox gives this model {confinement.memory_bytes} bytes: --sandbox-memory)"
    if isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno == errno.EROFS):
        return " (the sandbox may forbid it: docs/sandbox.md says what --sandbox-allow gives)"
    return ""
