"""Where the console is served, and where its files are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: Beside the API, on the same port.
MOUNT: Final = "/console"
LIVE: Final = f"{MOUNT}/live"
HISTORY: Final = f"{MOUNT}/history"
ASSETS: Final = f"{MOUNT}/assets"
THEME: Final = f"{ASSETS}/theme.css"
#: A page of its own, which NiceGUI has no part in.
LOGIN: Final = f"{MOUNT}/login"
LOGIN_PROVIDER: Final = f"{LOGIN}/provider"
LOGIN_CALLBACK: Final = f"{LOGIN}/callback"
LOGIN_STYLE: Final = f"{ASSETS}/login.css"
LOGOUT: Final = f"{MOUNT}/logout"
SESSION: Final = f"{MOUNT}/session"
#: Of all pages, below ``MOUNT``.
PAGE_PATHS: Final = ("/", "/latency", "/rollouts", "/events", "/request", "/what-if")

ASSETS_DIRECTORY: Final = Path(__file__).parent / "assets"
