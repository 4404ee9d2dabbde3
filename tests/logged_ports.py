"""The ports of a process that was started with port 0, from its log in JSON: nobody else can take them meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

_SECONDS = 60.0


def logged_ports(log: Path) -> dict[str, int]:
    """By service, as far as the process listens."""
    found = {}
    for line in log.read_bytes().splitlines(keepends=True):
        # The last line may be half written.
        if line.startswith(b"{") and line.endswith(b"\n"):
            event = json.loads(line)
            if event.get("event") == "listening":
                found[event["service"]] = event["port"]
    return found


def wait_ports(log: Path, *services: str, lives: Callable[[], bool]) -> dict[str, int]:
    """When all of these services listen. ``lives``: whether the process does."""
    ends = time.monotonic() + _SECONDS
    while not set(services) <= (found := logged_ports(log)).keys():
        assert lives(), log.read_text(errors="replace")[-3000:]
        assert time.monotonic() < ends, (services, log.read_text(errors="replace")[-3000:])
        time.sleep(0.02)
    return found
