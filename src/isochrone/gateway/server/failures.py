"""Why a gateway cannot start."""

from __future__ import annotations


class StartFailed(Exception):
    """The gateway cannot start; the message says what to change."""
