"""What a run measured: one entry per request, in columns, and the file that keeps it.

The generator writes it, the analysis reads it. A file is one .npz archive: a column per array, and the rest as JSON.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isochrone.errors import ConfigError
from isochrone.whole_files import write_whole

#: OK: answered in time. LATE: answered after its deadline. REJECTED: HTTP 429, 503 or 504, or their gRPC codes. FAILED:
#: any other error, or a connection that broke. UNSENT: the generator could not send it.
OK, LATE, REJECTED, FAILED, UNSENT = range(5)

#: Names for reports, by outcome.
OUTCOME_NAMES = ("ok", "late", "rejected", "failed", "unsent")

#: Written, and those that are read: files of format 1 have no carried requests, streams, stalls nor unfinished ones.
_FORMAT, _FORMATS = 2, (1, 2)
_EXPECTED = "a file that isochrone bench --output wrote"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """One entry per request in each column, in order of intended_ns; instants are ns since the start of the run.

    The start of the run is the end of its warm-up: requests of the warm-up have no entry. In a closed loop, a request's
    intended instant is the instant at which it was sent.
    """

    intended_ns: NDArray[np.int64]
    #: Of an unsent request: the instant at which the generator gave it up.
    sent_ns: NDArray[np.int64]
    #: The first token of a stream; -1: none.
    first_ns: NDArray[np.int64]
    ended_ns: NDArray[np.int64]
    outcome: NDArray[np.uint8]
    #: Index into ``Run.kinds``.
    kind: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.intended_ns)


@dataclass(frozen=True, slots=True)
class GeneratorUse:
    """How busy one generator process was, and how late it sent."""

    #: CPU time over wall-clock time while it measured: 1.0 is one core.
    cpu_share: float
    #: Lag: from the intended instant to the instant of sending.
    lag_p50_ns: int
    lag_p99_ns: int
    lag_max_ns: int


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement at one load."""

    target: str
    kinds: tuple[str, ...]
    #: Open loop: requests per second. Closed loop: None.
    rate: float | None
    #: Closed loop: requests in flight. Open loop: None.
    in_flight: int | None
    #: The measured time, without the warm-up; shorter than asked for when the run was interrupted.
    seconds: float
    #: ISO 8601, UTC.
    started_at: str
    outcomes: Outcomes
    generators: tuple[GeneratorUse, ...]
    #: Message -> count; bounded, the rest is counted under "other errors".
    errors: Mapping[str, int]
    warmup_seconds: float = 0.0
    #: Requests of the warm-up that were answered in the measured time: they count in rates of answers alone.
    carried: Outcomes = field(default_factory=lambda: merged([]))
    #: Those of ``kinds`` whose answers come in pieces: they alone have first tokens.
    streams: tuple[str, ...] = ()
    #: Requests of an interrupted run that were in flight, or due and not sent, at its end: they have no entry.
    unfinished: int = 0
    #: From when to when a generator process stood still, in ns since the start of the run.
    stalls: tuple[tuple[int, int], ...] = ()


_COLUMNS = tuple(each.name for each in fields(Outcomes))
_TYPES = {"outcome": np.uint8, "kind": np.uint16}
_CARRIED = "carried_"


def outcomes_from(columns: Mapping[str, Any]) -> Outcomes:
    """Outcomes from columns in any order of requests; sorted by the intended instant."""
    order = np.argsort(np.asarray(columns["intended_ns"], dtype=np.int64), kind="stable")
    return Outcomes(**{name: np.asarray(columns[name], dtype=_TYPES.get(name, np.int64))[order] for name in _COLUMNS})


def merged(parts: list[Outcomes]) -> Outcomes:
    """The outcomes of several generators as one."""
    empty = [Outcomes(**{name: np.empty(0, dtype=_TYPES.get(name, np.int64)) for name in _COLUMNS})]
    return outcomes_from({name: np.concatenate([getattr(each, name) for each in parts or empty]) for name in _COLUMNS})


def write_run(path: Path, run: Run) -> None:
    """Write a run atomically: the file is complete or absent. Raises ``OSError``."""
    described = {
        "format": _FORMAT,
        "target": run.target,
        "kinds": list(run.kinds),
        "rate": run.rate,
        "in_flight": run.in_flight,
        "seconds": run.seconds,
        "started_at": run.started_at,
        "generators": [asdict(each) for each in run.generators],
        "errors": dict(run.errors),
        "warmup_seconds": run.warmup_seconds,
        "streams": list(run.streams),
        "unfinished": run.unfinished,
        "stalls": [list(each) for each in run.stalls],
    }
    columns = {name: getattr(run.outcomes, name) for name in _COLUMNS}
    columns |= {_CARRIED + name: getattr(run.carried, name) for name in _COLUMNS}
    archive = io.BytesIO()
    np.savez_compressed(archive, run=np.array(json.dumps(described)), **columns)
    write_whole(path, archive.getvalue())


def read_run(path: Path) -> Run:
    """The run in a file. Never unpickles. Raises ``ConfigError`` for any other content."""
    try:
        # Opened here: of a damaged archive, numpy leaves its file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            described = json.loads(str(archive["run"][()]))
            if described["format"] not in _FORMATS:
                raise ConfigError(str(path), "format", f"format {_FORMAT}", f"format {described['format']}")
            kinds = tuple(str(name) for name in described["kinds"])
            outcomes = _checked({name: archive[name] for name in _COLUMNS}, len(kinds))
            has_carried = _CARRIED + _COLUMNS[0] in archive
            columns = {name: archive[_CARRIED + name] for name in _COLUMNS} if has_carried else None
            carried = merged([]) if columns is None else _checked(columns, len(kinds))
        return Run(
            target=str(described["target"]),
            kinds=kinds,
            rate=None if described["rate"] is None else float(described["rate"]),
            in_flight=None if described["in_flight"] is None else int(described["in_flight"]),
            seconds=float(described["seconds"]),
            started_at=str(described["started_at"]),
            outcomes=outcomes,
            generators=tuple(GeneratorUse(**each) for each in described["generators"]),
            errors={str(message): int(count) for message, count in described["errors"].items()},
            warmup_seconds=float(described.get("warmup_seconds", 0.0)),
            carried=carried,
            streams=tuple(str(name) for name in described.get("streams", ())),
            unfinished=int(described.get("unfinished", 0)),
            stalls=tuple((int(begins), int(ends)) for begins, ends in described.get("stalls", ())),
        )
    except FileNotFoundError:
        raise ConfigError(str(path), "file", _EXPECTED, "no such file") from None
    except ConfigError:
        raise
    except Exception as error:  # damaged bytes raise whatever zlib, zipfile and numpy do
        raise ConfigError(str(path), "file", _EXPECTED, f"{type(error).__name__}: {error}") from None


def _checked(columns: Mapping[str, Any], kinds: int) -> Outcomes:
    """Raises ``ValueError`` for columns that no run has."""
    if len({len(column) for column in columns.values()}) != 1:
        raise ValueError("its columns differ in length")
    outcomes = outcomes_from(columns)
    if len(outcomes) and int(outcomes.kind.max()) >= kinds:
        raise ValueError("a request names a kind that the file does not have")
    if len(outcomes) and int(outcomes.outcome.max()) >= len(OUTCOME_NAMES):
        raise ValueError("a request has an unknown outcome")
    return outcomes
