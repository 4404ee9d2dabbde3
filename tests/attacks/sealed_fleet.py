"""A fleet with a key, and what somebody without the key writes into its store."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

from guarded_servers import ask, inference

from bench.ports import ports_in_a_row
from isochrone.control.state.keys import Keys
from isochrone.secure.fleet_key import FleetKey
from isochrone.store.base import Entry, Put, Store
from isochrone.store.opening import seal_of
from isochrone.store.sealed import SealedStore
from isochrone.store.sqlite.store import SqliteStore
from sample_models import write_models
from up_process import ISOCHRONE, SECONDS, Up, start_up

MODEL = "identity_fp32"
NAME = "sealed"
KEYS = Keys(NAME)

NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True)
class SealedFleet:
    """A running fleet."""

    directory: Path
    control: int
    gateway: int
    up: Up

    @property
    def key(self) -> FleetKey:
        return FleetKey((self.directory / "fleet.key").read_bytes().strip())

    def status(self) -> dict[str, Any]:
        code, _, body = ask(self.control, "GET", "/v1/status")
        assert code == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    def faults(self) -> dict[str, str]:
        """By key below the fleet's prefix: why the record cannot be read."""
        return {each["key"].removeprefix(KEYS.prefix): each["reason"] for each in self.status().get("faults", ())}

    def version(self, gateway: int = 0, headers: Mapping[str, str] = NO_HEADERS) -> str:
        """The version that answers a request. ``gateway``: its number."""
        code, _, body = ask(self.gateway + gateway, "POST", f"/v2/models/{MODEL}/infer", headers, inference())
        assert code == 200, body
        return str(json.loads(body)["model_version"])

    def command(self, *words: str) -> str:
        found = subprocess.run(
            [*ISOCHRONE, *words, "--api", f"http://127.0.0.1:{self.control}"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    def read(self, key: FleetKey | None = None) -> dict[str, Entry]:
        """Everything in the store, as it is there; with a key, as its holders read it."""

        async def listed(store: Store) -> dict[str, Entry]:
            return dict((await store.list(KEYS.prefix)).entries)

        found: dict[str, Entry] = self._with_store(listed, key)
        return found

    def write(self, values: Mapping[str, bytes], key: FleetKey | None = None, *, lease: int = 0) -> None:
        """Write values as they are; with a key, sealed with it."""

        async def written(store: Store) -> None:
            assert (await store.transact((), [Put(at, value, lease) for at, value in values.items()])).succeeded

        self._with_store(written, key)

    def _with_store(self, use: Any, key: FleetKey | None) -> Any:
        async def used() -> Any:
            inner = SqliteStore("sqlite:fleet.db", self.directory / "state" / "fleet.db")
            store: Store = inner if key is None else SealedStore(inner, seal_of(key))
            try:
                return await use(store)
            finally:
                await store.close()

        return asyncio.run(used())


def fleet_text(control: int, gateway: int, security: str, workers: int = 1, gateways: int = 1) -> str:
    return f"""
name: {NAME}
repository: models
store: {{url: "sqlite:state/fleet.db"}}
control: {{listen: "127.0.0.1:{control}", console: false}}
gateways: {{front: {{count: {gateways}, listen: "127.0.0.1:{gateway}", metrics_port: 0}}}}
pools: {{cpu: {{workers: {workers}, first_port: 0}}}}
security: {security}
models: {{{MODEL}: {{version: 1, rollout: {{cutover: strict}}}}}}
"""


@contextmanager
def sealed_fleet(
    directory: Path, security: str = "{key: fleet.key}", *, workers: int = 1, gateways: int = 1
) -> Iterator[SealedFleet]:
    """Two versions of one model, of which the first is served. Gateways have ports in a row."""
    write_models(directory / "models", MODEL)
    copytree(directory / "models" / MODEL / "1", directory / "models" / MODEL / "2")
    write_key(directory / "fleet.key")
    control, gateway = ports_in_a_row(1), ports_in_a_row(gateways)
    (directory / "fleet.yaml").write_text(fleet_text(control, gateway, security, workers, gateways))
    with start_up(str(directory / "fleet.yaml"), log=directory / "up.log") as up:
        up.wait_for("Ctrl-C stops everything")
        yield SealedFleet(directory, control, gateway, up)


def write_key(path: Path, *before: str) -> FleetKey:
    """A file with a new key, after other lines; return the key alone."""
    new = secrets.token_hex(32)
    path.write_text("\n".join((*before, new)) + "\n")
    return FleetKey(new.encode())


def wait_until(holds: Any, seconds: float = SECONDS) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, f"waited {seconds} s in vain"
        time.sleep(0.05)
