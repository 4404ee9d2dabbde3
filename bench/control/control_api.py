"""The control API as a careful operator uses it: with any controller, and with recovery of lost answers.

A controller may be killed between writing a rollout and answering. Every rollout therefore has a unique name: after a
failure the name shows whether it was written. Must never start a rollout twice by accident.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

OVER = ("done", "aborted")
#: States of a rollout from which on its commit has been written.
COMMITTED = ("draining", "done")

_POLL_SECONDS = 0.01
_REQUEST_SECONDS = 5.0


class Refused(Exception):
    """A controller rejected the request."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status} {said}")
        self.status = status
        self.said = said


class Unreachable(Exception):
    """No controller answered in time."""


class ControlApi:
    """All controllers of a fleet, as one."""

    def __init__(self, addresses: Sequence[str], patience_seconds: float = 60.0) -> None:
        self._addresses = list(addresses)
        self._patience = patience_seconds
        self._client = httpx.Client(timeout=_REQUEST_SECONDS, trust_env=False)
        self._names = itertools.count(1)
        self._run = uuid.uuid4().hex[:8]

    def close(self) -> None:
        self._client.close()

    def status(self) -> dict[str, Any]:
        return self._read("/v1/status")

    def versions(self) -> dict[str, str]:
        """What the committed epoch serves."""
        return {model["name"]: model["version"] for model in self.status()["models"] if model["version"]}

    def rollouts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._read("/v1/rollouts")["rollouts"]
        return found

    def rollout(self, identity: str) -> dict[str, Any]:
        return self._read(f"/v1/rollouts/{identity}")

    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._read("/v1/events")["events"]
        return found

    def apply(self, text: str, directory: str, *, retire: bool = False) -> None:
        """``retire``: agree to everything that the plan takes away."""
        self._ask("PUT", "/v1/fleet", {"text": text, "directory": directory, "retire": retire})

    def start_rollout(
        self,
        changes: Mapping[str, str],
        cutover: str | None = None,
        canary: Mapping[str, Any] | bool | None = None,
        compare: Mapping[str, Any] | bool | None = None,
    ) -> str:
        """The rollout's identity; raises ``Refused`` if there is none."""
        name = f"proof-{self._run}-{next(self._names)}"
        wishes = {"cutover": cutover, "canary": canary, "compare": compare}
        body = {"changes": dict(changes), "by": name} | {key: wish for key, wish in wishes.items() if wish is not None}
        return self._create("/v1/rollouts", body, name)

    def rollback(self, model: str) -> str:
        name = f"proof-{self._run}-{next(self._names)}"
        return self._create(f"/v1/models/{model}/rollback", None, name)

    def abort(self, identity: str, reason: str = "the proof asks for it") -> None:
        self._ask("POST", f"/v1/rollouts/{identity}/abort", {"reason": reason})

    def promote(self, identity: str) -> None:
        """Promote its canary, whatever the figures."""
        self._ask("POST", f"/v1/rollouts/{identity}/promote", None)

    def wait(
        self,
        identity: str,
        timeout_seconds: float = 120.0,
        seen: Callable[[dict[str, Any], int], None] | None = None,
        until: Callable[[dict[str, Any]], bool] = lambda record: record["state"] in OVER,
        poll_seconds: float = _POLL_SECONDS,
    ) -> dict[str, Any]:
        """Polls until it is over; ``seen`` gets every record, with an instant after it was true."""
        ends = time.monotonic() + timeout_seconds
        while True:
            record = self.rollout(identity)
            if seen is not None:
                seen(record, time.monotonic_ns())
            if until(record):
                return record
            if time.monotonic() > ends:
                raise TimeoutError(f"rollout {identity} is {record['state']} after {timeout_seconds:.0f} s: {record}")
            time.sleep(poll_seconds)

    def _create(self, path: str, body: Mapping[str, Any] | None, name: str) -> str:
        ends = time.monotonic() + self._patience
        while True:
            for address in self._in_turn():
                try:
                    return str(self._send("POST", address, path, body, name)["identity"])
                except httpx.TransportError:
                    pass
                except Refused as refused:
                    # It may be rejected because it exists already: an earlier answer was lost.
                    if refused.status < 500 and self._named(name) is None:
                        raise
                if (found := self._named(name)) is not None:
                    return found
            self._breathe(ends, f"POST {path}")

    def _named(self, name: str) -> str | None:
        return next((str(record["identity"]) for record in self.rollouts() if record.get("by") == name), None)

    def _read(self, path: str) -> dict[str, Any]:
        return self._ask("GET", path, None)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """For calls that may be repeated."""
        ends = time.monotonic() + self._patience
        while True:
            for address in self._in_turn():
                try:
                    return self._send(method, address, path, body, "proof")
                except httpx.TransportError:
                    continue
                except Refused as refused:
                    if refused.status < 500:
                        raise
            self._breathe(ends, f"{method} {path}")

    def _in_turn(self) -> list[str]:
        """The controllers, the one that answered last first."""
        return list(self._addresses)

    def _breathe(self, ends: float, what: str) -> None:
        if time.monotonic() > ends:
            raise Unreachable(f"{what}: none of {', '.join(self._addresses)} answered for {self._patience:.0f} s")
        time.sleep(_POLL_SECONDS)

    def _send(self, method: str, address: str, path: str, body: Mapping[str, Any] | None, who: str) -> dict[str, Any]:
        headers = {"x-isochrone-user": who}
        try:
            response = self._client.request(method, f"http://{address}{path}", json=body, headers=headers)
        except httpx.TransportError:
            self._addresses.sort(key=lambda other: other == address)  # ask the others first from now on
            raise
        if response.status_code >= 300:
            raise Refused(response.status_code, response.text[:2000])
        answer: dict[str, Any] = response.json()
        return answer
