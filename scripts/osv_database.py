"""A copy of OSV's database of vulnerabilities on disk, and a server of it that pip-audit asks in place of osv.dev.

The copy is a zip file of JSON files, as OSV exports them for each ecosystem (all.zip), or a directory of such files.
"""

from __future__ import annotations

import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_ECOSYSTEM = "PyPI"


class OsvDatabase:
    """The vulnerabilities by the name of the package."""

    def __init__(self, path: Path) -> None:
        self._by_name: dict[str, list[dict[str, Any]]] = {}
        self.count = 0
        #: When the newest of them was changed, as the database says it.
        self.newest = ""
        for text in _files(path):
            self._add(json.loads(text))
        if not self.count:
            raise ValueError(
                f"{path}: expected a zip file or a directory of vulnerabilities in OSV's format, given none"
            )

    def _add(self, vulnerability: dict[str, Any]) -> None:
        packages = [each.get("package", {}) for each in vulnerability.get("affected", ())]
        names = {canonicalize_name(each["name"]) for each in packages if each.get("ecosystem") == _ECOSYSTEM}
        if not names:
            return
        self.count += 1
        self.newest = max(self.newest, str(vulnerability.get("modified", "")))
        for name in names:
            self._by_name.setdefault(name, []).append(vulnerability)

    def affecting(self, name: str, version: str) -> list[dict[str, Any]]:
        name = canonicalize_name(name)
        return [each for each in self._by_name.get(name, ()) if _affects(each, name, version)]


def _files(path: Path) -> Iterator[bytes]:
    if path.is_dir():
        for file in sorted(path.glob("*.json")):
            yield file.read_bytes()
        return
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".json"):
                yield archive.read(name)


def _affects(vulnerability: dict[str, Any], name: str, version: str) -> bool:
    """OSV's rule: the version is listed, or in a range (https://ossf.github.io/osv-schema/#evaluation)."""
    if vulnerability.get("withdrawn"):
        return False
    for affected in vulnerability["affected"]:
        package = affected.get("package", {})
        if package.get("ecosystem") != _ECOSYSTEM or canonicalize_name(package["name"]) != name:
            continue
        if version in affected.get("versions", ()):
            return True
        ranges = [each for each in affected.get("ranges", ()) if each.get("type") == "ECOSYSTEM"]
        if any(_is_within(each.get("events", ()), Version(version)) for each in ranges):
            return True
    return False


def _is_within(events: Any, version: Version) -> bool:
    inside = False
    for at, kind in sorted(_ordered(events), key=lambda each: each[0]):
        if kind == "introduced" and version >= at:
            inside = True
        elif (kind == "fixed" and version >= at) or (kind == "last_affected" and version > at):
            inside = False
    return inside


def _ordered(events: Any) -> Iterator[tuple[Version, str]]:
    for event in events:
        for kind, text in event.items():
            try:
                # "0" is before every version, also before those of which PEP 440 says that they come before 0.
                yield Version("0.dev0" if text == "0" else text), kind
            except InvalidVersion:
                continue


@contextmanager
def serving(database: OsvDatabase) -> Iterator[str]:
    """The URL at which OSV's query of one version is answered, on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers.get("content-length", "0"))))
            found = database.affecting(asked["package"]["name"], asked["version"])
            body = json.dumps({"vulns": found} if found else {}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/query"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
