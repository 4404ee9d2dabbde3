"""Rewrites the advice of a process that cannot listen: names the key of fleet.yaml instead of the flag. Pure.

A process names its own flag (``--listen``), but in a fleet the supervisor writes the command line.
"""

from __future__ import annotations

import re

from isochrone.control.fleet.settings.process_names import names_of
from isochrone.control.fleet.settings.spec import Fleet

_ADVICE = re.compile(r"choose another with (--[a-z-]+)")


def by_fleet_key(line: str, process: str, fleet: Fleet) -> str:
    """The line of a process's log with the advice rewritten; unchanged if it has none."""

    def key(advice: re.Match[str]) -> str:
        name = _key(process, advice[1], fleet)
        return f"change {name} in fleet.yaml" if name else advice[0]

    return _ADVICE.sub(key, line)


def _key(process: str, flag: str, fleet: Fleet) -> str:
    # gw-2.1 is the first process of the second gateway of gw.
    name = process.partition(".")[0]
    for path, names in names_of(fleet):
        if name in names:
            kind = path[0]
            last = "first_port" if kind == "pools" else "listen" if flag == "--listen" else "metrics_port"
            return ".".join(map(str, (*path, last)))
    return ""
