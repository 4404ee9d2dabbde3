"""Where the console is served, and where its files are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: Beside the API, on the same port.
MOUNT: Final = "/console"
LIVE: Final = f"{MOUNT}/live"
HISTORY: Final = f"{MOUNT}/history"
ASSETS: Final = f"{MOUNT}/assets"
#: Of all pages, below ``MOUNT``.
PAGE_PATHS: Final = ("/", "/latency", "/rollouts", "/events", "/request", "/what-if")

ASSETS_DIRECTORY: Final = Path(__file__).parent / "assets"
