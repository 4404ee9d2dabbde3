"""What streams of tokens say: tokens per second, times to the first and between tokens, deadlines kept. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.gpu.generation.streams import CUT, DROPPED, Stream

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
_REFUSED = (429, 503, 504)
_COLUMNS = ("flow", "due", "sent", "ended", "status", "wanted")
_PERCENTILES = {"p50": 50, "p99": 99, "p999": 99.9, "max": 100}
#: Beyond the longest answer that keeps its deadlines: for the lateness of the generators.
_GRACE_SLACK = 0.5


@dataclass(frozen=True)
class Streams:
    """Streams by column; the events of all of them one after the other. Times are ns of the monotonic clock."""

    flow: Integers
    due: Integers
    sent: Integers
    #: When the answer ended, or was cut; 0: it was never sent.
    ended: Integers
    status: Integers
    #: Tokens that the answer must have.
    wanted: Integers
    #: How many events each has.
    events: Integers
    #: Of the events: when they came, the tokens in them.
    times: Integers
    tokens: Integers
    errors: Counter[str] = field(default_factory=Counter)
    start_ns: int = 0

    @classmethod
    def of(cls, streams: Sequence[Stream]) -> Streams:
        return cls(
            *(np.array([getattr(each, name) for each in streams], np.int64) for name in _COLUMNS),
            np.array([len(each.times) for each in streams], np.int64),
            _flat([each.times for each in streams]),
            _flat([each.tokens for each in streams]),
            Counter(each.error[:300] for each in streams if each.error and each.status != CUT),
        )

    @classmethod
    def joined(cls, parts: Sequence[Streams], start_ns: int) -> Streams:
        columns = (*_COLUMNS, "events", "times", "tokens")
        arrays = (np.concatenate([getattr(each, name) for each in parts]) for name in columns)
        return cls(*arrays, sum((each.errors for each in parts), Counter()), start_ns)

    def chosen(self, which: Booleans) -> Streams:
        """Some of the streams."""
        events = which[self._owner]
        columns = (getattr(self, name)[which] for name in _COLUMNS)
        return Streams(
            *columns, self.events[which], self.times[events], self.tokens[events], self.errors, self.start_ns
        )

    def of_flow(self, number: int) -> Streams:
        return self.chosen(self.flow == number)

    def sent_between(self, begin: float, end: float) -> Streams:
        """Those that were sent within some seconds of the run."""
        at = (self.sent - self.start_ns) / 1e9
        return self.chosen((at >= begin) & (at < end))

    def __len__(self) -> int:
        return len(self.sent)

    @property
    def _owner(self) -> Integers:
        """The stream of each event."""
        return np.repeat(np.arange(len(self.events)), self.events)

    @property
    def _first(self) -> Integers:
        """The first event of each stream; meaningless for one without events."""
        return np.cumsum(self.events) - self.events

    @property
    def received(self) -> Integers:
        """Tokens of each stream."""
        return np.bincount(self._owner, self.tokens, len(self.events)).astype(np.int64)

    @property
    def refused(self) -> Booleans:
        """Rejected before the first token."""
        return np.isin(self.status, _REFUSED) & (self.events == 0)

    @property
    def complete(self) -> Booleans:
        return (self.status == 200) & (self.received == self.wanted)

    @property
    def failed(self) -> Booleans:
        """Neither complete nor refused, nor dropped for its deadline, nor cut by the bench."""
        return ~self.complete & ~self.refused & (self.status != CUT) & (self.status != DROPPED)

    def tokens_per_second(self, begin: float, end: float) -> float:
        """Of the tokens that came within some seconds of the run."""
        at = (self.times - self.start_ns) / 1e9
        return float(self.tokens[(at >= begin) & (at < end)].sum()) / (end - begin)

    def first_token_ns(self) -> Integers:
        """From sending to the first event, of the streams that have one."""
        begun = self.events > 0
        return self.times[self._first[begun]] - self.sent[begun]

    def first_waits(self, begin: float, end: float) -> tuple[Integers, int]:
        """Of the streams of some seconds of a run that cuts them at its end: ns to the first event, and of how many it
        is only known that they had waited so long.

        The later a stream was sent, the sooner it is cut: of the last ones only the quick would count. So those of the
        end are left out, as many seconds as the longest wait for a first event took, at most half of the run. Of the
        others, one without an event counts with the time that it has waited.
        """
        found = self.sent_between(begin, end)
        found = found.chosen(~found.refused & (found.ended > 0))
        longest = float(found.first_token_ns().max(initial=0)) / 1e9
        found = found.sent_between(begin, end - min(longest, (end - begin) / 2))
        begun = found.events > 0
        waits = found.ended - found.sent
        waits[begun] = found.first_token_ns()
        return waits, int((~begun).sum())

    def gaps_ns(self, begin: float = 0.0) -> Floats:
        """The time before each token but the first of its stream; from some second of the run on.

        Tokens that come in one event share the time before it: text is held back until its characters are complete.
        """
        gaps, counts = self._gaps()
        late_enough = (self.times[1:] - self.start_ns) / 1e9 >= begin
        keep = (self._owner[1:] == self._owner[:-1]) & late_enough
        return np.repeat(gaps[keep], counts[keep])

    def in_time(self, first_ns: float, between_ns: float) -> Booleans:
        """Of each stream: whether everything that it received came within the deadlines, and nothing was overdue when
        it ended."""
        begun = self.events > 0
        last = self.sent.copy()
        last[begun] = self.times[(self._first + self.events - 1)[begun]]
        found: Booleans = self.complete | (self.ended - last <= np.where(begun, between_ns, first_ns))
        found[begun] &= self.first_token_ns() <= first_ns
        gaps, _ = self._gaps()
        late = (gaps > between_ns) & (self._owner[1:] == self._owner[:-1])
        found[self._owner[1:][late]] = False
        return found

    def kept(self, first_ns: float, between_ns: float) -> Booleans:
        """Of each stream: whether it is complete and kept both deadlines."""
        return self.complete & self.in_time(first_ns, between_ns)

    def tokens_in_time(self, first_ns: float, between_ns: float, end: float = np.inf) -> int:
        """Tokens that came within their deadline, of all streams, until some second of the run."""
        begun = self.events > 0
        first = self._first[begun]
        counted = (self.times - self.start_ns) / 1e9 < end
        in_time = int(self.tokens[first][(self.first_token_ns() <= first_ns) & counted[first]].sum())
        gaps, counts = self._gaps()
        return in_time + int(counts[(gaps <= between_ns) & (self._owner[1:] == self._owner[:-1]) & counted[1:]].sum())

    def _gaps(self) -> tuple[Floats, Integers]:
        """For each event but the first: the time per token since the event before, and its tokens."""
        counts = self.tokens[1:]
        return np.diff(self.times) / np.maximum(1, counts), counts

    def problem(self) -> str:
        """Why a figure does not count; empty if it does."""
        failed = int(self.failed.sum())
        if failed:
            return f"{failed} of {len(self)} failed: {next(iter(self.errors), 'answers of another length')}"
        return "" if self.tokens.sum() else "no tokens"


def milliseconds(values_ns: Integers | Floats, name: str) -> dict[str, float]:
    """p50, p99, p99.9 and the largest in ms, each with a prefix; empty without values."""
    if not len(values_ns):
        return {}
    found = np.percentile(values_ns, list(_PERCENTILES.values())) / 1e6
    return {f"{name}_{key}_ms": float(value) for key, value in zip(_PERCENTILES, found, strict=True)}


def first_milliseconds(streams: Streams, begin: float, end: float, name: str = "first") -> dict[str, float]:
    """Percentiles of the wait for the first token, and how many of the streams had none yet."""
    waits, waiting = streams.first_waits(begin, end)
    return {**milliseconds(waits, name), f"{name}_waiting": waiting} if len(waits) else {}


def grace_seconds(least: float, first_ms: float, between_ms: float, longest: int) -> float:
    """For answers after the last arrival: whatever keeps its deadlines has ended by then."""
    return max(least, (first_ms + longest * between_ms) / 1e3 + _GRACE_SLACK)


def overload_figures(streams: Streams, first_ms: float, between_ms: float, seconds: float) -> dict[str, Any]:
    """Of an open loop whose requests have deadlines, or would have had them.

    Rates are of the tokens that came while requests arrived: what comes later, comes from a worker that is no longer
    under that load. A stream that the bench cut has missed a deadline, or nobody knows whether it would have kept them:
    then it is outside the share.
    """
    first_ns, between_ns = first_ms * 1e6, between_ms * 1e6
    refused = streams.refused
    in_time = streams.in_time(first_ns, between_ns)
    kept = streams.complete & in_time
    unfinished = (streams.status == CUT) & in_time
    admitted = int((~refused).sum())
    judged = admitted - int(unfinished.sum())
    late_share = 1 - streams.tokens_in_time(first_ns, between_ns) / max(1, int(streams.tokens.sum()))
    return {
        "requests": len(streams),
        "admitted": admitted,
        "refused_share": float(refused.mean()) if len(streams) else 0.0,
        "kept_share_of_admitted": float(kept.sum()) / judged if judged else None,
        "late_share": late_share if len(streams.tokens) else None,
        "tokens_per_second": streams.tokens_per_second(0, seconds),
        "goodput_tokens_per_second": streams.tokens_in_time(first_ns, between_ns, seconds) / seconds,
        "kept_requests_tokens_per_second": streams.chosen(kept).tokens_per_second(0, seconds),
        "dropped": int((streams.status == DROPPED).sum()),
        "cut": int((streams.status == CUT).sum()),
        "unfinished": int(unfinished.sum()),
        # Every stream had its grace: one without a token counts with the time that it has waited.
        **first_milliseconds(streams, -np.inf, np.inf),
        **milliseconds(streams.gaps_ns(), "between"),
        **milliseconds(streams.sent - streams.due, "generator_late"),
    }


def refusals_problem(streams: Streams, counted: float) -> str:
    """Whether the worker counted other refusals than its callers. Those of streams that were cut are not known, and the
    worker counts those whose deadline passed before their prompt was tokenised."""
    refused, unknown = int(streams.refused.sum()), int(np.isin(streams.status, (CUT, DROPPED)).sum())
    if refused <= counted <= refused + unknown:
        return ""
    return f"{refused} requests were refused by their answers, {counted:.0f} by the worker's count"


def _flat(arrays: Sequence[Any]) -> Integers:
    return np.concatenate([np.asarray(each, np.int64) for each in arrays]) if arrays else np.zeros(0, np.int64)
