"""The code blocks of README and docs by language, and the commands in them.

Blocks with commands of a fleet (``isochrone up``, ``rollout`` and so on) belong together, page by page: each command
depends on those before it. All other blocks are independent.
"""

from __future__ import annotations

import re
import shlex
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
#: Commands that need a whole fleet.
FLEET_COMMANDS = frozenset(
    ("up", "apply", "status", "top", "rollout", "canary", "drain", "undrain", "scale", "events", "logs", "init")
)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[Path, str]]:
    """(page, text) in the order of pages and blocks."""
    found = []
    for page in PAGES:
        found += [(page, text) for kind, text in _BLOCK.findall(page.read_text()) if kind == language]
    return found


def lines_of(text: str) -> list[str]:
    """The commands of an ``sh`` block."""
    return [line for line in text.replace("\\\n", " ").splitlines() if words_of(line)]


def words_of(command: str) -> list[str]:
    return shlex.split(command, comments=True)


def is_of_a_fleet(text: str) -> bool:
    """Whether an ``sh`` block needs a running fleet."""
    commands = [words_of(line) for line in lines_of(text)]
    return any(words[0] == "isochrone" and (words[1] in FLEET_COMMANDS or "--store" in words) for words in commands)


def check_installable(command: str) -> None:
    """Check that a ``pip install`` names extras that exist, without running it."""
    known = metadata.metadata("isochrone").get_all("Provides-Extra") or []
    for extras in re.findall(r"\[([\w,]+)\]", command):
        assert all(extra in known for extra in extras.split(",")), command
