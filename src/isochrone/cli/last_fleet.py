"""The fleet that was started last on this machine: commands without ``--api`` or ``--url`` talk to it.

``isochrone up`` writes the file; nothing else does, so that one command for another fleet does not redirect the next.
A file that cannot be written or read is as good as none: it only saves typing.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LastFleet:
    name: str
    #: Where its first controller answers; "": on a port that the controller picked.
    api: str
    #: Directory of its logs and its lock.
    state: str
    #: URL of its first gateway; "": it has none, or the gateway picks its port.
    gateway: str = ""


def last_fleet_file() -> Path:
    """In the state directory of the XDG base directory specification."""
    given = os.environ.get("XDG_STATE_HOME", "")
    # The specification: a relative path is to be ignored.
    base = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return base / "isochrone" / "last-fleet.json"


def remember(fleet: LastFleet) -> bool:
    """Whether commands will find it."""
    try:
        path = last_fleet_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: another command may be reading it.
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(json.dumps(asdict(fleet)) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except (OSError, RuntimeError):
        return False  # no home directory, or one that cannot be written to
    return True


def last_fleet() -> LastFleet | None:
    try:
        found = json.loads(last_fleet_file().read_text(encoding="utf-8"))
        # Earlier releases wrote no gateway.
        gateway = str(found.get("gateway", ""))
        return LastFleet(str(found["name"]), str(found["api"]), str(found["state"]), gateway)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError):
        return None
