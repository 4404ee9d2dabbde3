"""One repository index from those of several processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: name, version, state, reason
Row = tuple[str, str, str, str]


def common_index(indexes: Mapping[int, Sequence[Row]]) -> list[Row]:
    """A version is ready if it is ready in every process; otherwise it has the state of the first that differs."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    for number, rows in indexes.items():
        for row in rows:
            found.setdefault(row[:2], {})[number] = row
    loaded = {name for name, version in found if version}
    merged = []
    for (name, version), rows_of in sorted(found.items()):
        if not version and name in loaded:
            # A process that never loaded the model lists its name alone.
            continue
        states = {number: rows_of[number][2] if number in rows_of else "" for number in indexes}
        if len(set(states.values())) == 1:
            merged.append(rows_of[min(rows_of)])
            continue
        other = min(number for number, state in states.items() if state != "READY")
        _, _, state, reason = rows_of.get(other, (name, version, "UNAVAILABLE", "not loaded"))
        merged.append((name, version, state or "UNAVAILABLE", f"process {other}: {reason or 'not loaded'}"))
    return merged
