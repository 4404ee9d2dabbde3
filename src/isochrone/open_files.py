"""The limit of open files of this process: every connection is one."""

from __future__ import annotations

import resource


def raise_file_limit() -> int:
    """Raise the soft limit, usually 1,024, to the hard one, and return that; the soft one where the kernel refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft
    return hard
