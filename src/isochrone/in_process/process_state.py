"""What a worker changes in its process, and how it is put back when the last worker of the process has stopped.

``isochrone serve`` owns its process; here the process is the caller's: its switch interval and its logging are as
before afterwards, and nothing is frozen (``gc.freeze``). What the caller had frozen itself is not frozen afterwards
either: the collector cannot tell it from what a worker froze. That costs time in full collections, never memory.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading

import structlog

from isochrone.observe import logs

_LOGGER = "isochrone"


class ProcessState:
    """Counts the workers of the process: the first saves, the last restores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers = 0
        self._switch_interval = 0.0
        self._owns_structlog = False
        self._log_settings: logs.Settings | None = None

    def enter(self) -> logs.Settings:
        """A worker starts; returns the log settings that it uses. Warnings and errors go to stderr."""
        with self._lock:
            if self._log_settings is None:
                self._switch_interval = sys.getswitchinterval()
                before = structlog.get_config()
                self._owns_structlog = not structlog.is_configured()
                self._log_settings = logs.configure(logger=_LOGGER, info=False)
                if not self._owns_structlog:
                    # The caller decided what becomes of log lines.
                    structlog.configure(**before)
                logging.getLogger(_LOGGER).propagate = False
            self._workers += 1
            return self._log_settings

    def leave(self) -> None:
        """A worker has stopped."""
        with self._lock:
            self._workers -= 1
            if self._workers or self._log_settings is None:
                return
            sys.setswitchinterval(self._switch_interval)
            gc.unfreeze()
            logger = logging.getLogger(_LOGGER)
            logger.removeHandler(self._log_settings.handler)
            logger.setLevel(logging.NOTSET)
            logger.propagate = True
            if self._owns_structlog:
                structlog.reset_defaults()
            self._log_settings = None


process_state = ProcessState()
