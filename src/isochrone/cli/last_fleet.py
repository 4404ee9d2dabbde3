"""The fleet that was started last on this machine, which commands without ``--api`` or ``--url`` use.

Only ``isochrone up`` writes the file, so that a command for another fleet does not redirect the next one. A file that
cannot be written or read is ignored: it only saves typing.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LastFleet:
    name: str
    #: URL of its first controller; "": the controller picks its port.
    api: str
    #: Directory of its logs and its lock.
    state: str
    #: URL of its first gateway; "": it has none, or the gateway picks its port.
    gateway: str = ""
    #: Address of the Ray cluster that its processes run on; "": they run on this machine.
    ray: str = ""
    #: Its certificates as absolute paths, and the name in them; "": it has none, or names its addresses.
    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""


def last_fleet_file() -> Path:
    """The file, in the state directory of the XDG base directory specification."""
    given = os.environ.get("XDG_STATE_HOME", "")
    # The specification says to ignore a relative path.
    base = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return base / "isochrone" / "last-fleet.json"


def remember(fleet: LastFleet) -> bool:
    """Write the file. False: it cannot be written, and commands will not find the fleet."""
    try:
        path = last_fleet_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Atomically: another command may be reading it.
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(json.dumps(asdict(fleet)) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except (OSError, RuntimeError):
        return False  # no home directory, or one that cannot be written to
    return True


def last_fleet() -> LastFleet | None:
    try:
        found = json.loads(last_fleet_file().read_text(encoding="utf-8"))
        # Earlier releases wrote fewer.
        later = (str(found.get(name, "")) for name in ("gateway", "ray", "ca", "cert", "key", "server_name"))
        return LastFleet(str(found["name"]), str(found["api"]), str(found["state"]), *later)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError):
        return None
