"""Logs a message when the process has no file descriptors left.

Without a descriptor, uvloop closes new connections silently, and clients see resets. So a listener's sweep, once a
second, tries to open one. Never called on a request's path.
"""

from __future__ import annotations

import errno
import os
import resource

import structlog

from isochrone.clock import now_ns
from isochrone.observe.sparing import Sparing

log = structlog.get_logger(__name__)

#: One line per minute for the whole process.
_sparing = Sparing()


def warn_if_exhausted() -> None:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return
        if _sparing.lets_through(now_ns()) is not None:
            log.error(
                "out of file descriptors: new connections are closed immediately; raise the limit (ulimit -n) or lower"
                " --max-connections",
                limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                reason=error.strerror,
            )
