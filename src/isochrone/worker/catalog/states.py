"""The state of every known model version, with its reason, for the repository index and for errors. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from isochrone.errors import InvalidArgument, IsochroneError, NotFound, Unavailable
from isochrone.models.repository.versions import version_number

READY, LOADING, UNLOADING, UNAVAILABLE = "READY", "LOADING", "UNLOADING", "UNAVAILABLE"
#: The reason of a version that was unloaded on request, alone or before a detail.
UNLOADED = "unloaded"


class VersionStates:
    """(model, version) → (state, reason). An entry outlives the version; version "" stands for a whole model."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str], tuple[str, str]] = {}

    def set(self, name: str, version: str, state: str, reason: str = "") -> None:
        self._states[(name, version)] = (state, reason)

    def get(self, name: str, version: str) -> tuple[str, str]:
        return self._states.get((name, version), (UNAVAILABLE, ""))

    def knows(self, name: str) -> bool:
        return any(key[0] == name for key in self._states)

    def of(self, name: str) -> dict[str, tuple[str, str]]:
        return {key[1]: state for key, state in self._states.items() if key[0] == name}

    def failure(self, name: str) -> str | None:
        """The reason for which no version of a model is served, if a load failed."""
        for state, reason in self.of(name).values():
            if state == UNAVAILABLE and not is_unloaded(reason):
                return reason
        return None

    def rows(self, names: Iterable[str]) -> list[tuple[str, str, str, str]]:
        """(name, version, state, reason) of every entry; ``names`` without an entry get a row without a state."""
        rows = [(name, version, state, reason) for (name, version), (state, reason) in self._states.items()]
        listed = {row[0] for row in rows}
        rows += [(name, "", "", "") for name in names if name not in listed]
        return sorted(rows, key=lambda row: (row[0], version_number(row[1]) or 0))

    def fetching(self, name: str, versions: Collection[str]) -> Fetching:
        """The states of a model while its files are fetched; without ``versions``, of the model as a whole."""
        return Fetching(self._states, [(name, version) for version in versions or ("",)])

    def published(self, name: str, versions: Collection[str], served: Collection[str]) -> None:
        """A load succeeded: its versions are READY, and failures of versions that are not served are discarded."""
        for version in versions:
            self.set(name, version, READY)
        for version, (state, reason) in self.of(name).items():
            failed = state == UNAVAILABLE and not is_unloaded(reason)
            if not version or (failed and version not in served):
                del self._states[(name, version)]

    def load_abandoned(self, name: str) -> None:
        for version, (state, _) in self.of(name).items():
            if state == LOADING:
                self.set(name, version, UNAVAILABLE, f"{UNLOADED}: the load was abandoned")

    def forget(self, name: str) -> None:
        for version in self.of(name):
            del self._states[(name, version)]

    def unserved(self, name: str, version: str) -> IsochroneError:
        """The error of a request for a known model that is not served under this version; "" is the newest."""
        if version and version_number(version) is None:
            return not_a_version(version)
        states = self.of(name)
        if version and version not in states:
            return NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        state, reason = states[version] if version else _most_telling(states)
        detail = f" ({reason})" if reason else ""
        if version:
            text = f"Request for unknown model: '{name}' version {version} is not at ready state{detail}"
            return Unavailable(text).not_begun()
        if state == LOADING:
            text = f"Request for unknown model: '{name}' is not at ready state: it is loading"
            return Unavailable(text).not_begun()
        return Unavailable(f"Request for unknown model: '{name}' has no available versions{detail}").not_begun()


class Fetching:
    """LOADING, with the progress as the reason, for versions that have no other state."""

    def __init__(self, states: dict[tuple[str, str], tuple[str, str]], keys: list[tuple[str, str]]) -> None:
        self._states, self._keys = states, keys
        self._before: dict[tuple[str, str], tuple[str, str] | None] = {}
        self._ended = False

    def show(self, progress: str) -> None:
        for key in () if self._ended else self._keys:
            before = self._states.get(key)
            if key in self._before or before is None or before[0] not in (READY, UNLOADING):
                self._before.setdefault(key, before)
                self._states[key] = (LOADING, progress)

    def end(self) -> None:
        """The states are again as before; the load itself sets others."""
        self._ended = True
        for key, before in self._before.items():
            if self._states.get(key, ("", ""))[0] == LOADING:
                del self._states[key]
                if before is not None:
                    self._states[key] = before


def not_a_version(version: str) -> InvalidArgument:
    return InvalidArgument(f"model version: expected a positive integer, given '{version[:50]}'")


def _most_telling(states: dict[str, tuple[str, str]]) -> tuple[str, str]:
    for expected in (LOADING, UNLOADING, UNAVAILABLE):
        for state, reason in states.values():
            if state == expected:
                return state, reason
    return UNAVAILABLE, ""


def is_unloaded(reason: str) -> bool:
    """Whether a reason says that a version was unloaded on request, which is not a failure."""
    return reason.startswith(UNLOADED)
