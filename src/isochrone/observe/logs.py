"""Logs: one line per event, as key=value pairs or as JSON, with times in UTC.

The command line configures logging once; every module uses ``structlog.get_logger(__name__)``. Records of the standard
library's logging have the same format. Successful requests are not logged below verbose level 2: writing to a terminal
or a pipe can block the event loop.

``--log-verbose`` shows debug lines: level 1 for events of models, level 2 (``verbosity=2``) for every request.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from isochrone.errors import InvalidArgument, Unsupported

Setting = bool | int | str

#: The verbose level at which every request is logged.
REQUEST_LINES = 2

#: Triton's names of its two timestamp formats. Here both are ISO 8601 in UTC, with microseconds or seconds.
_FORMATS = ("default", "ISO8601")


def configure(
    verbose: int = 0,
    json: bool = False,
    log_file: str = "",
    stream: TextIO | None = None,
    *,
    logger: str = "",
    info: bool = True,
) -> Settings:
    """Configure logging for the process, to ``log_file`` or else ``stream`` (stderr). May be called again.

    ``logger``: only that logger and those below it, for a process whose logging is another's. ``info``: write lines
    of that level.
    """
    # Opened first: on failure the configuration is unchanged.
    handler = logging.FileHandler(log_file) if log_file else logging.StreamHandler(stream or sys.stderr)
    root = logging.getLogger(logger or None)
    for old in [handler for handler in root.handlers if isinstance(handler.formatter, _Formatter)]:
        root.removeHandler(old)
        old.close()
    colours = not log_file and (stream or sys.stderr).isatty()
    settings = Settings(handler, verbose, log_file, logger=root, info=info)
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(
            colors=colours, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
        )
    )
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        settings.add_timestamp,
    ]
    handler.setFormatter(
        _Formatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *([structlog.processors.format_exc_info] if json else []),
                renderer,
            ],
        )
    )
    root.addHandler(handler)
    for chatty in ("httpx", "httpcore"):
        # These log each call at info level, and the control plane makes several calls per second.
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            settings.drop_too_verbose,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        # Loggers must use a later configuration; none is on a hot path.
        cache_logger_on_first_use=False,
    )
    return settings


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """Marks our handler, so that ``configure`` replaces it and no other."""


class Settings:
    """Triton's log settings. Changes by ``apply`` take effect with the next line."""

    def __init__(
        self,
        handler: logging.Handler,
        verbose: int = 0,
        log_file: str = "",
        *,
        logger: logging.Logger | None = None,
        info: bool = True,
    ) -> None:
        self.handler = handler
        self._logger = logger or logging.getLogger()
        self._values: dict[str, Setting] = {
            "log_file": log_file,
            "log_info": info,
            "log_warning": True,
            "log_error": True,
            "log_verbose_level": verbose,
            "log_format": "default",
        }
        handler.addFilter(self._is_wanted)
        self._take_effect()

    def current(self) -> dict[str, Setting]:
        return dict(self._values)

    def apply(self, changes: Mapping[str, Setting]) -> dict[str, Setting]:
        """Apply a client's changes, all or none, and return all settings."""
        for name, value in changes.items():
            self._check(name, value)
        self._values.update(changes)
        self._take_effect()
        return self.current()

    def _check(self, name: str, value: Setting) -> None:
        if name == "log_file":
            # Triton's message. Otherwise any client could write to any file that the server may write.
            raise Unsupported("log file location can not be updated through network protocol")
        if name in ("log_info", "log_warning", "log_error"):
            expected, is_valid = "a boolean", isinstance(value, bool)
        elif name == "log_verbose_level":
            expected = "an integer from 0 to 4294967295"
            is_valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32
        elif name == "log_format":
            expected, is_valid = "one of " + ", ".join(_FORMATS), value in _FORMATS
        else:
            raise InvalidArgument(
                f"log settings: {name}: expected one of {', '.join(self._values)}, given an unknown name"
            )
        if not is_valid:
            raise InvalidArgument(f"log settings: {name}: expected {expected}, given {value!r}")

    def _take_effect(self) -> None:
        levels = [
            level
            for name, level in (
                ("log_verbose_level", logging.DEBUG),
                ("log_info", logging.INFO),
                ("log_warning", logging.WARNING),
                ("log_error", logging.ERROR),
            )
            if self._values[name]
        ]
        # Loggers drop lower levels before they build a record; the filter distinguishes the levels above.
        self._logger.setLevel(min(levels, default=logging.CRITICAL + 1))

    def _is_wanted(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return bool(self._values["log_verbose_level"])
        if record.levelno < logging.WARNING:
            return bool(self._values["log_info"])
        if record.levelno < logging.ERROR:
            return bool(self._values["log_warning"])
        return bool(self._values["log_error"])

    def drop_too_verbose(self, _: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """Processor: drop debug lines whose verbose level (``verbosity=2``; default 1) is not enabled."""
        verbosity = event.pop("verbosity", 1)
        if method == "debug" and verbosity > self._values["log_verbose_level"]:
            raise structlog.DropEvent
        return event

    def add_timestamp(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        """Processor: add the time in UTC."""
        precision = "microseconds" if self._values["log_format"] == "default" else "seconds"
        event["timestamp"] = datetime.now(UTC).isoformat(timespec=precision).replace("+00:00", "Z")
        return event
