"""Rules that keep personal data out of the audit log: fields that are hashed, dropped or truncated. Pure.

They apply before a record is made: what was redacted is in no file.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from isochrone.errors import FlagError
from isochrone.secure.audit.actor import ANONYMOUS, PROCESS, Actor
from isochrone.secure.audit.keys import AuditKey
from isochrone.secure.audit.records import Entry

HASH: Final = "hash"
DROP: Final = "drop"
TRUNCATE: Final = "truncate"
WAYS: Final = (HASH, DROP, TRUNCATE)
#: Fields that may name a person; those after the second are among the details.
FIELDS: Final = ("name", "address", "agent", "request_id", "user", "reason")
#: Characters that are left of a text.
_KEPT: Final = 3
_REMEMBERED: Final = 4096
#: Bits that are left of an address: its network, as log analysers truncate them.
_PREFIXES: Final = {4: 24, 6: 48}

Redact = Callable[[str], str]


class Redaction:
    """What is made of an entry."""

    __slots__ = ("_actor", "_by_field", "_details", "is_empty")

    def __init__(self, rules: Sequence[tuple[str, str]], key: AuditKey | None) -> None:
        """Rules as (field, way); a ``hash`` needs the key."""
        self._by_field = {field: _redact(field, way, key) for field, way in rules}
        self._details = [each for each in self._by_field.items() if each[0] not in ("name", "address")]
        # Actors and agents come again with each request.
        self._actor = lru_cache(_REMEMBERED)(self._redacted)
        self.is_empty = not self._by_field

    def apply(self, entry: Entry) -> Entry:
        if self.is_empty:
            return entry
        details = dict(entry.details)
        for field, how in self._details:
            if value := details.get(field):
                details[field] = how(str(value))
        return Entry(entry.wall_ns, self._actor(entry.actor), entry.action, entry.object, entry.outcome, details)

    def _redacted(self, actor: Actor) -> Actor:
        name, address = self._by_field.get("name"), self._by_field.get("address")
        if name is not None and actor.name and actor.kind not in (ANONYMOUS, PROCESS):
            actor = actor._replace(name=name(actor.name))
        if address is not None and actor.address:
            actor = actor._replace(address=address(actor.address))
        return actor


def read_rules(text: str, has_key: bool, flag: str = "--audit-redact") -> tuple[tuple[str, str], ...]:
    """``FIELD=WAY,…`` of a command line. Raises ``FlagError``."""
    rules: dict[str, str] = {}
    for word in text.split(",") if text else ():
        field, _, way = word.strip().partition("=")
        if field not in FIELDS or way not in WAYS:
            expected = f"FIELD=WAY with FIELD of {', '.join(FIELDS)} and WAY of {', '.join(WAYS)}"
            raise FlagError(flag, expected, word.strip()[:80] or "nothing")
        if way == HASH and not has_key:
            raise FlagError(flag, "--audit-key beside a hash: without a key, guessing names would undo it", word)
        rules[field] = way
    return tuple(rules.items())


def _redact(field: str, way: str, key: AuditKey | None) -> Redact:
    if way == DROP:
        return lambda value: ""
    if way == HASH:
        assert key is not None
        return lru_cache(_REMEMBERED)(key.redacted)
    return lru_cache(_REMEMBERED)(_network) if field == "address" else _beginning


def _beginning(value: str) -> str:
    return f"{value[:_KEPT]}…" if len(value) > _KEPT else value


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ""
    return str(ipaddress.ip_network((parsed, _PREFIXES[parsed.version]), strict=False).network_address)
