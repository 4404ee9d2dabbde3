"""Encodes and decodes etcd's JSON. Keys and values are base64, 64-bit numbers are strings.

https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/ and the messages of rpc.proto. etcd omits fields that have their
default value.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from isochrone.store.base import Changes, Compacted, Compare, Delete, Entry, Outcome, Put, Snapshot
from isochrone.store.prefixes import first_after

Message = dict[str, Any]

#: A range that ends with a zero byte has no end.
_NO_END = b"\0"


def encoded(data: bytes) -> str:
    return b64encode(data).decode()


def encoded_key(key: str) -> str:
    return encoded(key.encode())


def range_under(prefix: str) -> Message:
    end = first_after(prefix)
    return {
        "key": encoded(prefix.encode() or b"\0"),
        "range_end": encoded(_NO_END if end is None else end.encode()),
    }


def revision_of(message: Message) -> int:
    return int(message["header"].get("revision", 0))


def read_entry(pair: Message) -> Entry:
    return Entry(
        b64decode(pair["key"]).decode(),
        b64decode(pair.get("value", "")),
        int(pair["mod_revision"]),
        int(pair.get("lease", 0)),
    )


def read_snapshot(message: Message) -> Snapshot:
    entries = [read_entry(pair) for pair in message.get("kvs", ())]
    return Snapshot({entry.key: entry for entry in entries}, revision_of(message))


def transaction(compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> Message:
    return {
        "compare": [
            {"key": encoded_key(compare.key), "target": "MOD", "mod_revision": str(compare.revision)}
            for compare in compares
        ],
        "success": [_operation(operation) for operation in operations],
    }


def _operation(operation: Put | Delete) -> Message:
    if isinstance(operation, Delete):
        return {"request_delete_range": {"key": encoded_key(operation.key)}}
    return {
        "request_put": {
            "key": encoded_key(operation.key),
            "value": encoded(operation.value),
            "lease": str(operation.lease),
        }
    }


def read_outcome(message: Message) -> Outcome:
    return Outcome(message.get("succeeded", False), revision_of(message))


def watch_request(prefix: str, after: int) -> Message:
    return {"create_request": {**range_under(prefix), "start_revision": str(after + 1)}}


def read_changes(message: Message) -> Changes | None:
    """One answer of a watch: one or more complete revisions. None: it contains no change."""
    if "compact_revision" in message:
        raise Compacted(f"etcd keeps no changes before revision {message['compact_revision']}")
    events = message.get("events")
    if not events:
        return None
    written: dict[str, Entry] = {}
    deleted: dict[str, None] = {}
    revision = 0
    for event in events:
        entry = read_entry(event["kv"])
        revision = max(revision, entry.revision)
        if event.get("type") == "DELETE":
            written.pop(entry.key, None)
            deleted[entry.key] = None
        else:
            deleted.pop(entry.key, None)
            written[entry.key] = entry
    return Changes(revision, tuple(written.values()), tuple(deleted))
