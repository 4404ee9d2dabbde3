"""The control calls in force, for a process that starts later. Pure; the coordinator keeps it in a file.

Calls are kept in the protocol's REST form. Of calls that replace each other only the last one stays, so the record does
not grow with the number of calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote, unquote

import msgspec

_PATHS = (
    ("load", re.compile(r"/v2/repository/models/(?P<name>[^/]+)/load")),
    ("unload", re.compile(r"/v2/repository/models/(?P<name>[^/]+)/unload")),
    ("register", re.compile(r"/v2/systemsharedmemory/region/(?P<name>[^/]+)/register")),
    ("unregister", re.compile(r"/v2/systemsharedmemory(?:/region/(?P<name>[^/]+))?/unregister")),
    ("register_cuda", re.compile(r"/v2/cudasharedmemory/region/(?P<name>[^/]+)/register")),
    ("unregister_cuda", re.compile(r"/v2/cudasharedmemory(?:/region/(?P<name>[^/]+))?/unregister")),
    ("trace", re.compile(r"/v2(?:/models/(?P<name>[^/]+))?/trace/setting")),
    ("log", re.compile(r"/v2/logging")),
)

Value = dict[str, Any]


class Change(msgspec.Struct, frozen=True):
    """A control call that changes a process."""

    kind: str
    #: Of the model or region; "": all of them.
    name: str
    #: The JSON object of the call.
    value: Value

    @property
    def target(self) -> str:
        """Its path in REST."""
        name = quote(self.name, safe="")
        return {
            "load": f"/v2/repository/models/{name}/load",
            "unload": f"/v2/repository/models/{name}/unload",
            "register": f"/v2/systemsharedmemory/region/{name}/register",
            "unregister": f"/v2/systemsharedmemory{f'/region/{name}' if name else ''}/unregister",
            "register_cuda": f"/v2/cudasharedmemory/region/{name}/register",
            "unregister_cuda": f"/v2/cudasharedmemory{f'/region/{name}' if name else ''}/unregister",
            "trace": f"/v2{f'/models/{name}' if name else ''}/trace/setting",
            "log": "/v2/logging",
        }[self.kind]

    @property
    def changes_models(self) -> bool:
        return self.kind in ("load", "unload")


def change_of(target: str, value: Value) -> Change | None:
    """The change that a POST means; None: it is no such call."""
    for kind, pattern in _PATHS:
        match = pattern.fullmatch(target)
        if match is not None:
            return Change(kind, unquote(match.groupdict().get("name") or ""), value)
    return None


class Pending(msgspec.Struct, frozen=True):
    """A change that was begun. If the coordinator ends during it, the next one undoes it."""

    change: Change
    #: Process → models that were ready in it before.
    before: dict[int, list[str]]


class Record(msgspec.Struct, frozen=True):
    """The calls in force. Dicts are in the order of the calls."""

    #: Model → the object of its load; None: it was unloaded.
    models: dict[str, Value | None] = {}
    #: Region → the object of its registration.
    regions: dict[str, Value] = {}
    #: The same of CUDA regions. A name is in one of the two.
    cuda_regions: dict[str, Value] = {}
    #: Model ("": all) → its trace settings.
    trace: dict[str, Value] = {}
    log: Value = {}
    pending: Pending | None = None

    def begun(self, change: Change, before: Mapping[int, Collection[str]]) -> Record:
        named = {number: sorted(models) for number, models in before.items()}
        return msgspec.structs.replace(self, pending=Pending(change, named))

    def ended(self) -> Record:
        """The pending change was undone."""
        return msgspec.structs.replace(self, pending=None)

    def applied(self, change: Change, before: Collection[str] = (), after: Collection[str] = ()) -> Record:
        """The record after a change. ``before`` and ``after`` are the models that were ready: a load of an ensemble
        loads the models of its steps, an unload may unload dependents."""
        record = self.ended()
        name, value = change.name, change.value
        match change.kind:
            case "load" | "unload":
                models = dict(record.models)
                for other in sorted({*before} - {*after}):
                    models.pop(other, None)
                    models[other] = None
                for other in sorted({*after} - {*before} - {name}):
                    models.pop(other, None)
                    models[other] = {}
                models.pop(name, None)
                models[name] = value if change.kind == "load" else None
                return msgspec.structs.replace(record, models=models)
            case "register":
                return msgspec.structs.replace(record, regions={**record.regions, name: value})
            case "unregister":
                left = {key: region for key, region in record.regions.items() if name and key != name}
                return msgspec.structs.replace(record, regions=left)
            case "register_cuda":
                return msgspec.structs.replace(record, cuda_regions={**record.cuda_regions, name: value})
            case "unregister_cuda":
                left = {key: region for key, region in record.cuda_regions.items() if name and key != name}
                return msgspec.structs.replace(record, cuda_regions=left)
            case "trace":
                settings = {**record.trace.get(name, {}), **value}
                # A reset restores what a process starts with.
                settings = {key: setting for key, setting in settings.items() if setting is not None}
                trace = {key: known for key, known in record.trace.items() if key != name}
                return msgspec.structs.replace(record, trace={**trace, name: settings} if settings else trace)
            case _:
                return msgspec.structs.replace(record, log={**record.log, **value})

    def replay(
        self, ready: Collection[str] = (), regions: Collection[str] = (), cuda_regions: Collection[str] = ()
    ) -> list[Change]:
        """The calls that bring a process which has these models and regions to the record, in order."""
        calls = [Change("log", "", self.log)] if self.log else []
        calls += [Change("unregister", name, {}) for name in regions]
        calls += [Change("unregister_cuda", name, {}) for name in cuda_regions]
        calls += [Change("register", name, value) for name, value in self.regions.items()]
        calls += [Change("register_cuda", name, value) for name, value in self.cuda_regions.items()]
        for name, value in self.models.items():
            if value is None:
                if name in ready:
                    calls.append(Change("unload", name, {}))
            elif value or name not in ready:
                # A load without parameters is what a start has done already.
                calls.append(Change("load", name, value))
        calls += [Change("trace", name, value) for name, value in self.trace.items()]
        return calls

    def undo(self, change: Change, before: Collection[str]) -> list[Change] | None:
        """The calls that take a change back in a process where these models were ready before it.

        They do no harm where it was not made. ``restore`` then takes care of the models that the change did not name.
        None: it cannot be taken back, as a reload with the same parameters of a model whose files have changed, or a
        setting whose earlier value is not recorded.
        """
        name, known = change.name, self.models.get(change.name) or {}
        match change.kind:
            case "load" if name not in before:
                return [Change("unload", name, {})]
            case "load" if change.value != known:
                return [Change("load", name, known)]
            case "unload" if name in before:
                return [Change("load", name, known)]
            case "register" | "unregister":
                regions = {key: region for key, region in self.regions.items() if key == name or not name}
                again = [Change("register", key, region) for key, region in regions.items()]
                return [Change("unregister", name, {}), *again]
            case "register_cuda" | "unregister_cuda":
                regions = {key: region for key, region in self.cuda_regions.items() if key == name or not name}
                again = [Change("register_cuda", key, region) for key, region in regions.items()]
                return [Change("unregister_cuda", name, {}), *again]
            case _:
                return None

    def restore(self, before: Collection[str], now: Collection[str]) -> list[Change]:
        """The calls after which a process has the models again that were ready before."""
        extra = [Change("unload", name, {}) for name in sorted({*now} - {*before})]
        return extra + [Change("load", name, self.models.get(name) or {}) for name in sorted({*before} - {*now})]
