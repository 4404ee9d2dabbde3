"""The code blocks of README and docs by language, and the commands in them.

Blocks with commands of a fleet (``isochrone up``, ``rollout`` and so on) belong together, page by page: each command
depends on those before it. All other blocks are independent.
"""

from __future__ import annotations

import http.client
import re
import shlex
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PAGES = sorted([ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])
#: Pages whose blocks depend on each other, so that each has a test of its own.
TUTORIAL = ROOT / "docs" / "tutorial.md"
SIGNING = ROOT / "docs" / "signing.md"
ENCRYPTION = ROOT / "docs" / "encryption.md"
#: Commands that need a whole fleet.
FLEET_COMMANDS = frozenset(
    ("up", "apply", "status", "top", "rollout", "canary", "drain", "undrain", "scale", "events", "logs", "init")
)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[Path, str]]:
    """(page, text) in the order of pages and blocks; without those of pages that have a test of their own."""
    found = []
    for page in PAGES:
        if page in (TUTORIAL, SIGNING, ENCRYPTION):
            continue
        found += [(page, text) for kind, text in _BLOCK.findall(page.read_text()) if kind == language]
    return found


def tutorial_blocks() -> list[tuple[str, str]]:
    """(language, text) of every block of the tutorial, in its order."""
    return _BLOCK.findall(TUTORIAL.read_text())


def signing_commands() -> list[str]:
    """The commands of the page about signatures, in their order."""
    return _commands(SIGNING)


def encryption_commands() -> list[str]:
    """The same of the page about encryption."""
    return _commands(ENCRYPTION)


def _commands(page: Path) -> list[str]:
    found = _BLOCK.findall(page.read_text())
    return [line for kind, text in found if kind == "sh" for line in lines_of(text)]


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
    for extras in re.findall(r"(?:\.|isochrone)\[([\w,]+)\]", command):
        assert all(extra in known for extra in extras.split(",")), command


class Answer(NamedTuple):
    """An answer to a ``curl`` of the docs, and what it asked for."""

    status: int
    headers: http.client.HTTPMessage
    content: bytes
    path: str
    asked: dict[str, str]


def curl(words: list[str]) -> Answer:
    """Do what curl does, with the options that the docs use: curl is not on every machine (tests/peers has it)."""
    method, body, headers, address = "GET", None, {}, ""
    remaining = iter(words)
    for word in remaining:
        if word in ("-s", "-i"):
            continue
        if word == "-X":
            method = next(remaining)
        elif word == "-d":
            method, body = "POST", next(remaining)
        elif word == "-H":
            name, _, value = next(remaining).partition(": ")
            headers[name] = value
        else:
            assert not word.startswith("-"), f"no rule for curl {word}"
            address = word
    host, _, path = address.partition("/")
    with closing(http.client.HTTPConnection(host, timeout=60)) as connection:
        connection.request(method, f"/{path}", body, headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read(), path, headers)
