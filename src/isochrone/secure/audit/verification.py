"""Whether a log is as its process wrote it: what was edited, removed, reordered, truncated, or sealed by a stranger.

Only the log's files are needed, and the key where it has one. One fault may show in several records; each finding names
file, line and record.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from isochrone.secure.audit.keys import AuditKey
from isochrone.secure.audit.reading import Line, lines_of
from isochrone.secure.audit.records import NO_HASH, RETENTION, SEGMENT, START, Record, is_whole
from isochrone.secure.audit.seals import Seal, read_seal
from isochrone.secure.audit.segments import segment_path, segments_in

#: A process that runs may delete an expired segment while it is read.
_ATTEMPTS: Final = 3

Kind = Literal["edited", "removed", "reordered", "truncated", "forged", "unsealed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``line`` 0: the file as a whole; ``record`` 0: none."""

    kind: Kind
    file: str
    line: int
    record: int
    message: str


@dataclass(slots=True)
class Verdict:
    """Of one log."""

    log: str
    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    segments: int = 0
    #: The last record: what an operator may keep elsewhere, and give to ``--head`` later.
    sequence: int = 0
    head: str = NO_HASH
    #: Whether a seal with the given key covers the log.
    is_sealed: bool = False
    #: Records after the seal of a process that runs.
    unsealed: int = 0
    #: Records that retention deleted.
    deleted: int = 0

    @property
    def is_intact(self) -> bool:
        return not self.findings


def verify(log: Path, key: AuditKey | None = None, heads: frozenset[str] = frozenset(), live: bool = False) -> Verdict:
    """``heads``: hashes that the log must contain. ``live``: a process is writing it. Raises ``OSError``."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):
            return _verify(log, key, heads, live)
    return _verify(log, key, heads, live)


def _verify(log: Path, key: AuditKey | None, heads: frozenset[str], live: bool) -> Verdict:
    # Before the records: a process that runs writes its seal after them.
    seal = read_seal(log)
    return _Verifier(log, key, seal, heads, live).verdict()


class _Verifier:
    """One pass over a log."""

    def __init__(self, log: Path, key: AuditKey | None, seal: Seal | None, heads: frozenset[str], live: bool) -> None:
        self._log, self._key, self._seal, self._live = log, key, seal, live
        self._verdict = Verdict(log.name)
        self._id = ""
        #: What the next record must have; None: anything goes, after a line that could not be read.
        self._sequence: int | None = None
        self._previous: str | None = None
        self._highest = 0
        #: Places where records are missing, as far as they do not come later.
        self._gaps: list[tuple[Line, int, int]] = []
        self._late: set[int] = set()
        self._first: Record | None = None
        self._first_line: Line | None = None
        self._checkpoints: list[Record] = []
        #: The hash of the record that the seal names, if it is there.
        self._at_seal = ""
        self._heads_left = set(heads)
        self._last: Line | None = None

    def verdict(self) -> Verdict:
        verdict = self._verdict
        verdict.segments = len(segments_in(self._log))
        torn: Line | None = None
        for line in lines_of(self._log):
            if torn is not None:
                self._found("edited", torn, 0, torn.problem)
            torn = None
            if line.problem == "the line is torn":
                torn = line
            else:
                self._line(line)
            self._last = line
        # A process that runs may be writing it.
        if torn is not None and not self._live:
            self._found(
                "truncated", torn, self._highest + 1, "the last line is torn: the rest of its record is missing"
            )
        self._resolve_gaps()
        self._check_beginning()
        self._check_seal()
        for head in sorted(self._heads_left):
            self._add("truncated", self._log.name, 0, 0, f"no record has the hash {head}, which the log had once")
        verdict.findings.sort(key=lambda each: (each.file, each.line))
        return verdict

    def _line(self, line: Line) -> None:
        record, verdict = line.record, self._verdict
        if record is None or not is_whole(line.content, record):
            why = line.problem if record is None else "its hash is not that of its content"
            self._found("edited", line, self._sequence or 0, why)
            # It says nothing that can be relied on: it counts as the record that belongs here.
            self._sequence = None if self._sequence is None else self._sequence + 1
            self._highest = max(self._highest, (self._sequence or 1) - 1)
            self._previous = None
            return
        verdict.records += 1
        if self._first is None:
            self._first, self._first_line = record, line
        self._place(line, record)
        self._own_records(line, record)
        if self._seal is not None and record.sequence == self._seal.sequence:
            self._at_seal = record.hash
        self._heads_left.discard(record.hash)

    def _place(self, line: Line, record: Record) -> None:
        """Whether it stands where it belongs, behind the record that it names."""
        expected = self._sequence
        if expected is None or record.sequence == expected:
            if self._previous is not None and record.previous != self._previous:
                self._found("edited", line, record.sequence - 1, "the record behind it names another hash")
        elif record.sequence > expected:
            self._gaps.append((line, expected, record.sequence - 1))
        else:
            self._late.add(record.sequence)
            self._found("reordered", line, record.sequence, f"it stands where record {expected} belongs")
            return
        self._highest = max(self._highest, record.sequence)
        self._verdict.sequence, self._verdict.head = record.sequence, record.hash
        self._sequence, self._previous = record.sequence + 1, record.hash

    def _own_records(self, line: Line, record: Record) -> None:
        """Records that the log writes about itself."""
        details = record.details
        if record.action == SEGMENT:
            self._id = self._id or str(details.get("log", ""))
            if details.get("log") != self._id:
                self._found("forged", line, record.sequence, "its segment is another log's")
            number = details.get("segment")
            if not isinstance(number, int) or line.path.name != segment_path(self._log, number).name:
                self._found("reordered", line, record.sequence, f"its segment was number {str(number)[:20]}")
        elif line.number == 1:
            self._found("removed", line, record.sequence, "the first record of its segment is missing")
        if record.action == RETENTION:
            self._checkpoints.append(record)
        elif record.action == START and "problem" in details:
            kind = details.get("kind")
            found: Kind = "forged" if kind == "forged" else "edited" if kind == "edited" else "truncated"
            self._found(found, line, record.sequence, f"at this start, {details['problem']}")

    def _resolve_gaps(self) -> None:
        for line, first, last in self._gaps:
            behind = last + 1
            # Not by counting: a forged record may name any number.
            while first <= last and first in self._late:
                first += 1
            while first <= last and last in self._late:
                last -= 1
            if first <= last:
                which = f"record {first} is" if first == last else f"records {first} to {last} are"
                self._found("removed", line, first, f"before record {behind}, {which} missing")

    def _check_beginning(self) -> None:
        """Only retention may have deleted what was before the first record."""
        first, line = self._first, self._first_line
        if first is None or line is None or first.sequence == 1:
            return
        self._verdict.deleted = first.sequence - 1
        segment = first.details.get("segment", 0) if first.action == SEGMENT else 0
        for record in self._checkpoints:
            details = record.details
            through, last, digest = (details.get(name) for name in ("deleted_through", "last_sequence", "last_hash"))
            # It names what was written before it.
            if isinstance(through, int) and isinstance(last, int) and last < record.sequence:
                exact = last == first.sequence - 1
                if segment and (digest == first.previous if exact else last >= first.sequence):
                    return
        message = f"records 1 to {first.sequence - 1} are missing, and no checkpoint says that retention deleted them"
        self._found("removed", line, first.sequence - 1, message)

    def _check_seal(self) -> None:
        seal, verdict, name = self._seal, self._verdict, self._log.name
        end = self._last
        file, number = (end.path.name, end.number) if end is not None else (name, 0)
        if seal is None:
            if verdict.records:
                self._add("truncated", file, number, 0, "the seal is missing: nothing says where the log ended")
            return
        state = seal.state(self._key)
        if state == "forged":
            self._add("forged", "seal.json", 1, seal.sequence, "the seal was not made with this key")
        elif state == "not keyed":
            self._add("forged", "seal.json", 1, seal.sequence, "the seal was made without the key")
        elif self._id and seal.log != self._id:
            self._add("forged", "seal.json", 1, seal.sequence, "the seal is another log's")
        # An edited last record is there, and reported.
        elif seal.sequence > max(verdict.sequence, self._highest):
            message = f"the log ends with record {verdict.sequence}; the seal names record {seal.sequence}"
            self._add("truncated", file, number, seal.sequence, message)
        elif self._at_seal and self._at_seal != seal.hash:
            self._add("edited", "seal.json", 1, seal.sequence, f"record {seal.sequence} is not the sealed one")
        elif verdict.sequence > seal.sequence and not self._live:
            message = f"records {seal.sequence + 1} to {verdict.sequence} came after the seal"
            why = "the process was killed before it sealed them, and its next start will note that; or they were added"
            self._add("unsealed", file, number, verdict.sequence, f"{message}: {why}")
        else:
            verdict.is_sealed = state == "valid" and bool(self._at_seal)
            verdict.unsealed = max(0, verdict.sequence - seal.sequence)

    def _found(self, kind: Kind, line: Line, record: int, message: str) -> None:
        self._add(kind, line.path.name, line.number, record, message)

    def _add(self, kind: Kind, file: str, line: int, record: int, message: str) -> None:
        self._verdict.findings.append(Finding(kind, file, line, record, message))
