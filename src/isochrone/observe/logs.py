"""Logs: one line per event, key=value for people, JSON for machines, times in UTC.

Set up once by the command line; every module then asks ``structlog.get_logger()``. What libraries send
through the standard library's logging comes out the same way. Nothing on a request's ordinary way logs, unless
verbose level 2 asks for it: writing to a terminal or a pipe can block the loop.

Debug lines are what ``--log-verbose`` shows: 1 for what happens to models, 2 (``verbosity=2``) for every request.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from isochrone.clock import SECOND
from isochrone.errors import InvalidArgument, Unsupported

Setting = bool | int | str

#: The verbose level from which every request has its line.
REQUEST_LINES = 2

#: How Triton names its two forms of timestamp; in ours both are ISO 8601 in UTC, to the microsecond or to the
#: second.
_FORMATS = ("default", "ISO8601")


def configure(verbose: int = 0, json: bool = False, log_file: str = "", stream: TextIO | None = None) -> Settings:
    """Sets logging up for the process, to ``log_file`` or else ``stream`` (stderr); again replaces it."""
    # Opened first: if it fails, the logs stay as they are.
    handler = logging.FileHandler(log_file) if log_file else logging.StreamHandler(stream or sys.stderr)
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler.formatter, _Formatter)]:
        root.removeHandler(old)
        old.close()
    colours = not log_file and (stream or sys.stderr).isatty()
    settings = Settings(handler, verbose, log_file)
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
        # A line per call at info: the control plane makes several a second.
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
        # Loggers must follow a later configure(); none is on a hot path.
        cache_logger_on_first_use=False,
    )
    return settings


class Sparing:
    """Lets one line through in a while and counts those it holds back: a model may fail at every request."""

    __slots__ = ("_every_ns", "_held_back", "_last")

    def __init__(self, every_ns: int = 60 * SECOND) -> None:
        self._every_ns = every_ns
        self._held_back = 0
        self._last: int | None = None

    def lets_through(self, now: int) -> int | None:
        """How many lines were held back since the last one, if another is due; None: it is held back too."""
        if self._last is not None and now - self._last < self._every_ns:
            self._held_back += 1
            return None
        self._last = now
        held_back, self._held_back = self._held_back, 0
        return held_back


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """Marks the one handler that is ours, so that setting up again replaces it and no other."""


class Settings:
    """Triton's log settings, live: what ``apply`` changes holds from the next line on."""

    def __init__(self, handler: logging.Handler, verbose: int = 0, log_file: str = "") -> None:
        self._handler = handler
        self._values: dict[str, Setting] = {
            "log_file": log_file,
            "log_info": True,
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
        """Changes what a client asks to change, all or nothing, and returns all settings."""
        for name, value in changes.items():
            self._check(name, value)
        self._values.update(changes)
        self._take_effect()
        return self.current()

    def _check(self, name: str, value: Setting) -> None:
        if name == "log_file":
            # As Triton answers, word for word: else whoever reaches the port writes to any file the server
            # may.
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
        # Loggers refuse below this before they build anything; the filter tells the levels above it apart.
        logging.getLogger().setLevel(min(levels, default=logging.CRITICAL + 1))

    def _is_wanted(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return bool(self._values["log_verbose_level"])
        if record.levelno < logging.WARNING:
            return bool(self._values["log_info"])
        if record.levelno < logging.ERROR:
            return bool(self._values["log_warning"])
        return bool(self._values["log_error"])

    def drop_too_verbose(self, _: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """Processor: a debug line may name the verbose level it needs (``verbosity=2``); without, it is 1."""
        verbosity = event.pop("verbosity", 1)
        if method == "debug" and verbosity > self._values["log_verbose_level"]:
            raise structlog.DropEvent
        return event

    def add_timestamp(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        """Processor: the instant, in UTC."""
        precision = "microseconds" if self._values["log_format"] == "default" else "seconds"
        event["timestamp"] = datetime.now(UTC).isoformat(timespec=precision).replace("+00:00", "Z")
        return event
