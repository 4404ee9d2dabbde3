"""Looks for known vulnerabilities in what the locks name, with pip-audit.

    make audit                                  asks osv.dev
    make audit ARGS='--database all.zip'        a copy of OSV's database: no network
    make audit ARGS='--database all.zip image'  of one lock

The exit status is 0 if none is known, 1 if some are, 2 if nothing could be asked. It runs in the environment of
locks/tools.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lock import LOCKS, Pin, read_lock
from osv_database import OsvDatabase, serving


def groups(pins: Sequence[Pin]) -> list[list[Pin]]:
    """Each version of a package in a group of its own: pip-audit takes one, and other Pythons may install another."""
    found: list[dict[str, Pin]] = []
    for pin in pins:
        group = next((each for each in found if pin.name not in each), None)
        if group is None:
            group = {}
            found.append(group)
        group[pin.name] = pin
    return [list(each.values()) for each in found]


def ask(pins: Sequence[Pin], url: str) -> list[dict[str, Any]] | str:
    """What pip-audit says of each package; or why it could not say it."""
    with tempfile.TemporaryDirectory(prefix="isochrone-audit-") as folder:
        given, said = Path(folder, "requirements.txt"), Path(folder, "audit.json")
        given.write_text("".join(f"{pin.name}=={pin.version} --hash=sha256:{pin.hashes[0]}\n" for pin in pins))
        command = [sys.executable, "-m", "pip_audit", "-r", str(given), "--require-hashes", "--disable-pip"]
        command += ["-s", "osv", "-f", "json", "-o", str(said), "--progress-spinner", "off", "--cache-dir", folder]
        if url:
            command += ["--osv-url", url]
        environment = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"} if url else None
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if not said.exists():
            lines = ended.stderr.strip().splitlines()
            return lines[-1] if lines else f"pip-audit ended with {ended.returncode}"
        packages: list[dict[str, Any]] = json.loads(said.read_text())["dependencies"]
        return packages


def audit(name: str, url: str) -> int:
    """The number of vulnerabilities of one lock, which are printed; raises ``SystemExit`` where nothing was said."""
    pins = read_lock(LOCKS / f"{name}.txt")
    found = 0
    for group in groups(pins):
        said = ask(group, url)
        if isinstance(said, str):
            print(
                f"nothing is known of locks/{name}.txt: {said}\nWithout a network, download OSV's export for this "
                "ecosystem (all.zip) elsewhere, and name the file: make audit ARGS='--database all.zip'",
                file=sys.stderr,
            )
            raise SystemExit(2)
        for package in said:
            for vulnerability in package.get("vulns", ()):
                found += 1
                fixed = ", ".join(vulnerability["fix_versions"]) or "no version"
                print(
                    f"locks/{name}.txt: {package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}"
                )
                print(f"  {vulnerability['description'][:200]}")
    print(f"locks/{name}.txt: {len(pins)} packages, {found or 'no'} known vulnerabilities")
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make audit", description="Known vulnerabilities of what the locks name.")
    parser.add_argument("locks", nargs="*", metavar="LOCK", help="as image or dev; all without")
    parser.add_argument("--database", type=Path, help="a copy of OSV's database: a zip file or a directory")
    given = parser.parse_args(arguments)
    names = given.locks or sorted(path.stem for path in LOCKS.glob("*.txt"))
    with ExitStack() as stack:
        url = ""
        if given.database is not None:
            try:
                database = OsvDatabase(given.database)
            except (OSError, ValueError, zipfile.BadZipFile) as error:
                print(f"--database: {error}", file=sys.stderr)
                return 2
            print(f"{given.database}: {database.count} vulnerabilities, the newest of {database.newest}", flush=True)
            url = stack.enter_context(serving(database))
        return 1 if sum(audit(name, url) for name in names) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
