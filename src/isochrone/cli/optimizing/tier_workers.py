"""The workers of two tiers of a running fleet, with the tokens that let a command load models into them.

Tokens are in the fleet's store: who can read it can change what the workers run. The API only says where it is, as its
controller sees it and without a password.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from isochrone.cli.api_client import ApiClient
from isochrone.control.api.messages import Status, WorkerStatus
from isochrone.control.state.codec import decode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import WorkerRecord
from isochrone.errors import FlagError, Unavailable
from isochrone.secure.fleet_key import read_fleet_key
from isochrone.store.base import Store, StoreUnavailable
from isochrone.store.etcd.address import split_password
from isochrone.store.opening import open_store, seal_of, sqlite_path
from isochrone.store.seals import Seal

_ISOCHRONE = "isochrone"


@dataclass(frozen=True, slots=True)
class FleetWorker:
    #: https, if it has TLS.
    url: str
    pool: str
    token: str


def workers_of_tiers(tiers: str, api: str, store: str = "", key: Path | None = None) -> list[FleetWorker]:
    """``tiers``: two of them, such as ``edge,core``. ``store``: its URL; "": as the API shows it. ``key``: the file of
    the fleet's key; None: records are taken as they are."""
    names = [part.strip() for part in tiers.split(",")]
    if len(names) != 2 or not all(names):
        raise FlagError("--tiers", "two tiers, such as edge,core", f"'{tiers}'")
    with ApiClient(api) as client:
        status = client.get("/v1/status", Status)
    chosen = [worker_of(status, name) for name in names]
    seal = seal_of(read_fleet_key(key))
    tokens = asyncio.run(_tokens(status, [worker.name for worker in chosen], store, seal))
    return [
        FleetWorker(f"{'https' if worker.tls else 'http'}://{worker.address}", worker.pool, token)
        for worker, token in zip(chosen, tokens, strict=True)
    ]


def worker_of(status: Status, tier: str) -> WorkerStatus:
    """The first worker of a tier that serves. Pure."""
    for worker in status.workers:
        if (
            worker.tier == tier
            and worker.kind == _ISOCHRONE
            and not (worker.draining or worker.fault or worker.standby)
        ):
            return worker
    known = ", ".join(sorted({worker.tier for worker in status.workers if worker.tier}))
    expected = (
        f"a tier with a worker of Isochrone that serves (tiers: {known})"
        if known
        else "a fleet with tiers: set pools.NAME.tier in fleet.yaml and apply it"
    )
    raise FlagError("--tiers", expected, f"'{tier}'")


async def _tokens(status: Status, workers: list[str], given: str = "", seal: Seal | None = None) -> list[str]:
    url = given or status.store.url
    kind, _, rest = url.partition(":")
    place = split_password(url)[0]
    if kind == "sqlite":
        path = sqlite_path(rest)
        place = f"{url} ({path})"
        if not os.access(path, os.R_OK):
            # Opening it would create it.
            raise Unavailable(
                f"--tiers needs the fleet's store {place}, where workers have their tokens, and cannot read it: run "
                "the command on the controller's machine, as the user that runs the fleet, or give it with --store"
            )
    store = open_store(url, seal=seal)
    try:
        keys = Keys(status.fleet)
        found = [await _token(store, keys, worker) for worker in workers]
        if not any(found) and not (await store.list(keys.workers)).entries:
            raise Unavailable(
                f"the store {place} has no worker of the fleet '{status.fleet}': it is not the fleet's store; give "
                "that with --store"
            )
    except StoreUnavailable as error:
        raise error if given else Unavailable(f"{error}; or give the store's URL with --store") from None
    finally:
        await store.close()
    for worker, token in zip(workers, found, strict=True):
        if token is None:
            raise Unavailable(f"worker {worker} has left the fleet; run the command again")
    return [token for token in found if token is not None]


async def _token(store: Store, keys: Keys, worker: str) -> str | None:
    """None: the store does not know the worker."""
    entry = await store.get(keys.worker(worker))
    return None if entry is None else decode(entry.value, WorkerRecord).control_token
