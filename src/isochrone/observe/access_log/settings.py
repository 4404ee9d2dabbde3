"""What ``--access-log`` says: which requests are logged, and where."""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass
from typing import Final

from isochrone.errors import FlagError

OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class AccessLogSettings:
    """One server's access log."""

    #: The share of requests that are logged, 0 to 1, beside failures.
    share: float
    #: "": standard output.
    path: str = ""
    #: Failed and late requests that are logged per second, ten times as many at once; more are counted.
    failures_per_second: int = 100
    #: The process that writes the lines, as they name it.
    name: str = ""


def read_access_log(share: str, path: str, name: str, flag: str = "--access-log") -> AccessLogSettings | None:
    """Of the command line's words; None: no request is logged. Raises ``FlagError``.

    ``name``: of the process; "": that of its host.
    """
    if share == OFF:
        if path:
            raise FlagError(f"{flag}-file", f"{flag} with a share of requests beside it", path)
        return None
    try:
        number = float(share)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise FlagError(flag, "a share of requests from 0 (failures alone) to 1, or off", share[:50])
    return AccessLogSettings(number, path, name=name or socket.gethostname())
