"""What callers are answered with while the audit log cannot be written."""

from __future__ import annotations

from isochrone.errors import Unavailable


class AuditUnavailable(Unavailable):
    """Nothing of the action has run: its record could not be written."""

    code = "audit_unavailable"


def cannot_write(directory: object, reason: str) -> AuditUnavailable:
    error = AuditUnavailable(
        f"refused, since the audit log cannot be written ({reason}); free space for {directory} or make it writable"
    )
    error.unprocessed = True
    return error
