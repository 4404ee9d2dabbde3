"""The control calls to one worker: read its index, and make it serve exactly some versions.

Uses the protocol's own control calls, so that a real Triton is driven like a worker of ours; ``triton_loads`` has
Triton's peculiarities. A new version is loaded beside those that serve: no call unloads a version that stays desired.
Every failure is a ``ControlFailed`` with the server's reason; errors of the HTTP client are never raised to the caller.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import msgspec

from isochrone.control.state.process_records import NO_FIELDS
from isochrone.control.workers import triton_loads
from isochrone.errors import DeadlineExceeded, IsochroneError, NotFound, Unavailable
from isochrone.protocol.access import control_token, fencing
from isochrone.secure.signing.signed_version import Provenance
from isochrone.wire.tls.fleet_transport import fleet_transport
from isochrone.wire.tls.process_tls import refuses

if TYPE_CHECKING:
    from isochrone.control.state.process_records import WorkerRecord

#: States of a version in the protocol's index.
READY, LOADING, UNLOADING, UNAVAILABLE = "READY", "LOADING", "UNLOADING", "UNAVAILABLE"

_CONNECT_SECONDS = 5.0
#: For calls that are answered from memory.
_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.05
_INDEX = "/v2/repository/index"


class ControlFailed(Unavailable):
    """A call to a worker failed. ``refused``: the worker rejected it, and a retry is of no use. ``cut``: the connection
    ended instead of an answer, as when its process ends."""

    code = "control_failed"

    def __init__(self, message: str, *, refused: bool = False, cut: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        self.cut = cut


@dataclass(frozen=True, slots=True)
class ServedState:
    """One version on one worker."""

    state: str
    #: SHA-256 in hexadecimal; "": the server reports none.
    digest: str = ""
    #: Why it is not ready; of a ready version: why the last load failed.
    reason: str = ""
    #: Who signed it, when, and from what, for people; "": nobody had to.
    signed_by: str = ""


class WorkerControl:
    """The client of one worker.

    ``config_of`` returns a model's configuration if it is known without the worker, as from
    ``triton_loads.config_in``; only a Triton on which nothing is loaded yet needs it. ``term``: the leader's term, by
    which a worker of ours rejects calls of earlier leaders; 0: none is sent.
    """

    def __init__(
        self,
        record: WorkerRecord,
        config_of: Callable[[str], Mapping[str, Any] | None] = lambda model: None,
        term: int = 0,
        own_fields: Mapping[str, str] = NO_FIELDS,
    ) -> None:
        """``own_fields``: headers that prove to a worker of the fleet that a controller calls."""
        self.record = record
        self._config_of = config_of
        #: Why it is not called: its token would travel in plain text, or to a worker that nothing vouches for.
        self._refusal = refuses(record.tls) if record.kind == "isochrone" else ""
        self._client = httpx.AsyncClient(
            base_url=record.url,
            # Each call has its own time limit below. Never through a proxy.
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            transport=fleet_transport(),
            trust_env=False,
            headers={
                **(own_fields if record.is_of_fleet else {}),
                **({control_token.HEADER: record.control_token} if record.control_token else {}),
                **({fencing.HEADER: str(term)} if term else {}),
            },
        )

    async def ready(self) -> bool:
        """Whether it accepts calls. Of a Triton: whether it is live, since by default it stays not ready after one
        version has failed (see ``triton_loads``)."""
        if self._refusal:
            return False
        check = "ready" if self.record.kind == "isochrone" else "live"
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return (await self._client.get(f"/v2/health/{check}")).status_code == 200
        except (httpx.HTTPError, OSError, TimeoutError):
            return False

    async def index(self) -> dict[str, dict[str, ServedState]]:
        """Model → version → state. A model that was never loaded has no versions."""
        return self.parsed_index(await self.raw_index())

    async def raw_index(self, seconds: float = _ANSWER_SECONDS) -> bytes:
        """The index as it was sent, so that a frequent reader can compare it before parsing."""
        async with self._within(seconds, "list its models"):
            return (await self._send("POST", _INDEX, {})).content

    def parsed_index(self, body: bytes) -> dict[str, dict[str, ServedState]]:
        rows = self._json(_INDEX, body)
        found: dict[str, dict[str, ServedState]] = {}
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "name" in row for row in rows):
            raise self._failed(f"expected an index of models, given {str(rows)[:200]}")
        for row in rows:
            versions = found.setdefault(str(row["name"]), {})
            if row.get("state"):
                digest = str(row.get("digest", "")).removeprefix("sha256:")
                reason = str(row.get("reason", ""))
                signed_by = _signed_by(row.get("provenance"))
                versions[str(row.get("version", ""))] = ServedState(str(row["state"]), digest, reason, signed_by)
        return found

    async def serve(self, model: str, versions: Sequence[str], seconds: float) -> None:
        """Make the loaded versions of a model exactly these; return when all are ready.

        Versions that stay keep serving, and versions that go finish their requests. If the call fails, the worker
        serves the same versions as before. If it times out, the worker may still be loading.
        """
        if not versions:
            await self.unload(model, seconds)
            return
        async with self._within(seconds, f"load version {', '.join(versions)} of model '{model}'"):
            if self.record.kind == "isochrone":
                # Our own parameter: the rest of the configuration stays as it is on the worker's disk.
                await self._load(model, {"versions": ",".join(versions)})
            else:
                await self._serve_triton(model, versions)

    async def unload(self, model: str, seconds: float = 60.0) -> None:
        """Return when no version is left; harmless if there was none."""
        async with self._within(seconds, f"unload model '{model}'"):
            try:
                await self._call("POST", f"/v2/repository/models/{_path(model)}/unload", {})
            except NotFound:
                return
            # Triton answers before the unload is done.
            while True:
                states = (await self.index()).get(model, {}).values()
                if not any(each.state in (READY, UNLOADING) for each in states):
                    return
                await asyncio.sleep(_POLL_SECONDS)

    async def config_digest(self, model: str, version: str) -> str:
        """SHA-256 of a version's configuration without its version policy: for servers that report no digest."""
        async with self._within(_ANSWER_SECONDS, f"give the configuration of model '{model}'"):
            config = await self._config(model, version)
        config.pop("version_policy", None)
        return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    async def close(self) -> None:
        await self._client.aclose()

    # Triton.

    async def _serve_triton(self, model: str, versions: Sequence[str]) -> None:
        """Load only if something changes: Triton reloads every version that a load names."""
        desired = set(versions)
        serving = await self._ready_versions(model)
        if serving == desired:
            return
        config = None if serving else self._config_of(model)
        if not serving and config is None:
            # The configuration can be read only after a load: load by the policy on its disk first.
            await self._load_triton(model, None)
            serving = await self._ready_versions(model)
            if serving == desired:
                return
        if config is None:
            config = await self._config(model, _any_of(serving))
        policy = {"specific": {"versions": sorted(map(int, desired))}}
        await self._load_triton(model, json.dumps({**config, "version_policy": policy}))
        # It silently skips versions that are not in its repository.
        missing = desired - await self._ready_versions(model)
        if missing:
            raise self._failed(
                f"model '{model}' version {', '.join(sorted(missing))}: expected in its model repository, "
                "given a load that left it out",
                refused=True,
            )

    async def _ready_versions(self, model: str) -> set[str]:
        states = (await self.index()).get(model, {})
        return {version for version, each in states.items() if each.state == READY}

    async def _load_triton(self, model: str, config: str | None) -> None:
        if not self.record.grpc_port:
            await self._load(model, {} if config is None else {"config": config})
            return
        try:
            await triton_loads.load(self.record.host, self.record.grpc_port, model, config)
        except IsochroneError as error:
            raise self._failed(str(error), refused=not isinstance(error, Unavailable)) from None

    # HTTP.

    async def _load(self, model: str, parameters: dict[str, str]) -> None:
        await self._call("POST", f"/v2/repository/models/{_path(model)}/load", {"parameters": parameters})

    async def _config(self, model: str, version: str) -> dict[str, Any]:
        config = await self._call("GET", f"/v2/models/{_path(model)}/versions/{_path(version)}/config")
        if not isinstance(config, dict):
            raise self._failed(f"expected the configuration of model '{model}', given {str(config)[:200]}")
        return config

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON; None: it has none. Raise ``NotFound`` for 404 and ``ControlFailed`` for other errors."""
        return self._json(path, (await self._send(method, path, body)).content)

    async def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        if self._refusal:
            raise self._failed(self._refusal)
        try:
            response = await self._client.request(method, path, json=body)
        except (httpx.HTTPError, OSError) as error:
            cut = isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError)
            raise self._failed(f"no answer: {type(error).__name__}: {error}".rstrip(": "), cut=cut) from None
        if response.status_code == 404:
            raise NotFound(_reason(response))
        if response.status_code >= 300:
            # 503 is temporary: the worker stops, or another call is in progress.
            raise self._failed(_reason(response), refused=response.status_code != 503)
        return response

    def _json(self, path: str, body: bytes) -> Any:
        if not body:
            return None
        try:
            return json.loads(body)
        except ValueError:
            given = body[:200].decode("utf-8", "replace")
            raise self._failed(f"{path}: expected JSON, given {given!r}") from None

    @asynccontextmanager
    async def _within(self, seconds: float, task: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except (TimeoutError, DeadlineExceeded):
            raise self._failed(f"did not {task} within {seconds:g} s") from None
        except ControlFailed:
            raise
        except IsochroneError as error:
            raise self._failed(str(error), refused=True) from None

    def _failed(self, reason: str, *, refused: bool = False, cut: bool = False) -> ControlFailed:
        return ControlFailed(f"worker '{self.record.name}' ({self.record.address}): {reason}", refused=refused, cut=cut)


def _any_of(versions: Iterable[str]) -> str:
    """The oldest version. On a Triton all versions of a model share one configuration."""
    return min(versions, key=lambda version: int(version) if version.isdigit() else 0)


def _path(name: str) -> str:
    return quote(name, safe="")


def _reason(response: httpx.Response) -> str:
    """The server's error message."""
    try:
        reported = response.json().get("error", "")
    except (ValueError, AttributeError):
        reported = response.text
    return str(reported).strip() or f"HTTP status {response.status_code}"


def _signed_by(given: object) -> str:
    try:
        return msgspec.convert(given, Provenance).summary if given is not None else ""
    except msgspec.ValidationError:
        return ""
