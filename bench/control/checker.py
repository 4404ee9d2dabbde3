"""Checks that a history of answers is consistent with atomic changes of versions.

Every commit gives all models their versions at once. The checker looks for an epoch that explains each answer:

- *one version*: an answer's version, and the version each of its stages wrote, are all of one epoch, and that epoch had
  been requested when the answer came. An aborted version is in no epoch, so it must never appear;
- *strict*: if one request ended before another started, and the first can only have been served by a strict commit or
  later, then the second was, too, for every model that commit changed. The same holds once the commit was known done;
- *none lost*: every request has an answer or an explicit error.

Each answer gets the earliest epoch that fits, in the order the requests started. Bounds only ever grow with the epochs
they come from, so if that fails for an answer, every other choice fails too. A version that is served again soon after
hides which epoch an answer came from: ``undecidable`` names such commits. Pure: lists in, list out, O(n log n).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.control.history import ERROR, LOST, OK, Answer

FAST, STRICT = "fast", "strict"

#: Kinds of violation.
WENT_BACK, MIXED, UNCOMMITTED, TOO_EARLY, UNANSWERED, MALFORMED = (
    "went back",
    "mixed stages",
    "never committed",
    "seen too early",
    "lost",
    "malformed",
)


@dataclass(frozen=True, slots=True)
class Commit:
    """One epoch, as the clients' side knows it."""

    epoch: int
    #: Of every model.
    versions: Mapping[str, str]
    #: The cutover to it.
    cutover: str = FAST
    #: Versions that a share of the traffic gets instead, all together.
    canary: Mapping[str, str] = field(default_factory=dict)
    #: It was not requested before this instant.
    asked_ns: int = 0
    #: From this instant on it was known to be committed; None: not known.
    settled_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken guarantee, and the requests that prove it."""

    kind: str
    text: str
    #: The request at fault first, then the one it contradicts, if any.
    answers: tuple[Answer, ...]

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True)
class _Bound:
    """The earliest epoch a model may still be served by, and what proved it: an answer, or a commit's own end."""

    index: int = 0
    proof: Answer | None = None


_Signature = tuple[str, str, tuple[tuple[str, str], ...]]


class _Epochs:
    """The commits in order, and what follows from them."""

    def __init__(self, commits: Sequence[Commit], pipelines: Mapping[str, Sequence[str]]) -> None:
        self.commits = sorted(commits, key=lambda commit: commit.epoch)
        self.pipelines = pipelines
        self.models = sorted({model for commit in self.commits for model in commit.versions})
        self.asked: list[int] = []
        for commit in self.commits:
            # A commit follows the previous one, whenever it was requested.
            self.asked.append(max(commit.asked_ns, self.asked[-1] if self.asked else 0))
        self._explaining: dict[_Signature, list[int]] = {}
        self._implied = {model: self._implications(model) for model in self.models}

    def explaining(self, answer: Answer) -> list[int]:
        """The places of all epochs that give exactly this version and these stages."""
        signature = (answer.model, answer.version, answer.stages)
        found = self._explaining.get(signature)
        if found is None:
            found = [place for place, commit in enumerate(self.commits) if _gives(commit, answer)]
            self._explaining[signature] = found
        return found

    def implied(self, model: str, place: int) -> Mapping[str, int]:
        """Bounds for all models, once an answer of this model was served by this epoch or a later one."""
        return self._implied[model][place]

    def changed(self, place: int) -> list[str]:
        """Models of which this epoch serves something else than the one before it, pipelines with their stages."""
        if place == 0:
            return []
        before, after = self.commits[place - 1], self.commits[place]
        return [model for model in self.models if self._seen(before, model) != self._seen(after, model)]

    def same(self, model: str, one: int, other: int) -> bool:
        """Whether an answer of the model could be of either epoch."""
        return not set(self._seen(self.commits[one], model)).isdisjoint(self._seen(self.commits[other], model))

    def _seen(self, commit: Commit, model: str) -> list[tuple[str, ...]]:
        """The versions of the model and its stages that the epoch serves together."""
        parts = (model, *self.pipelines.get(model, ()))
        return [tuple(versions.get(part, "") for part in parts) for versions in _assignments(commit)]

    def _implications(self, model: str) -> list[dict[str, int]]:
        """Grows with the epoch: a strict commit that changed this model binds all models it changed."""
        bounds: list[dict[str, int]] = []
        current: dict[str, int] = {}
        for place, commit in enumerate(self.commits):
            if commit.cutover == STRICT and model in (changed := self.changed(place)):
                current = {**current, **dict.fromkeys(changed, place)}
            bounds.append(current)
        return bounds


def check(
    history: Iterable[Answer], commits: Sequence[Commit], pipelines: Mapping[str, Sequence[str]] | None = None
) -> list[Violation]:
    """All violations, in the order the requests at fault started. ``pipelines``: each ensemble's stages."""
    epochs = _Epochs(commits, pipelines or {})
    violations: list[Violation] = []
    answers: list[Answer] = []
    for answer in sorted(history, key=lambda one: one.started_ns):
        if (violation := _on_its_own(answer, epochs)) is not None:
            violations.append(violation)
        elif answer.outcome == OK:
            answers.append(answer)
    violations += _in_order(answers, epochs)
    return sorted(violations, key=lambda one: one.answers[0].started_ns)


def undecidable(commits: Sequence[Commit], pipelines: Mapping[str, Sequence[str]] | None = None) -> list[int]:
    """Strict epochs that the checker cannot verify: their new version may as well be an older epoch's.

    It may not, once a strict commit between the two is known to be done. So runs go through versions in a long cycle.
    """
    epochs = _Epochs(commits, pipelines or {})
    found = []
    for place, commit in enumerate(epochs.commits):
        if commit.cutover != STRICT:
            continue
        for model in epochs.changed(place):
            settled = [
                earlier
                for earlier in range(place)
                if epochs.commits[earlier].cutover == STRICT
                and (at := epochs.commits[earlier].settled_ns) is not None
                and at < epochs.asked[place]
                and model in epochs.changed(earlier)
            ]
            since = max(settled, default=0)
            if any(epochs.same(model, earlier, place) for earlier in range(since, place)):
                found.append(commit.epoch)
                break
    return found


def _on_its_own(answer: Answer, epochs: _Epochs) -> Violation | None:
    """What one record shows without looking at others."""
    if answer.outcome == LOST:
        return Violation(UNANSWERED, f"{describe(answer)} got neither an answer nor an error", (answer,))
    if answer.outcome not in (OK, ERROR) or answer.ended_ns < answer.started_ns or answer.started_ns <= 0:
        return Violation(MALFORMED, f"{describe(answer)} has no proper outcome, start and end", (answer,))
    if answer.outcome == ERROR:
        if not answer.error:
            return Violation(MALFORMED, f"{describe(answer)} failed without a reason", (answer,))
        return None
    stages = tuple(name for name, _ in answer.stages)
    expected = tuple(epochs.pipelines.get(answer.model, ()))
    if expected and stages != expected:
        return Violation(MIXED, f"{describe(answer)} came from stages {stages}, expected {expected}", (answer,))
    explaining = epochs.explaining(answer)
    if not explaining:
        return _unexplained(answer, epochs)
    if epochs.asked[explaining[0]] > answer.ended_ns:
        early = (epochs.asked[explaining[0]] - answer.ended_ns) / 1e6
        text = f"{describe(answer)} was answered {early:.3f} ms before that version was asked for"
        return Violation(TOO_EARLY, text, (answer,))
    return None


def _unexplained(answer: Answer, epochs: _Epochs) -> Violation:
    versions = {part: set[str]() for part in (answer.model, *(name for name, _ in answer.stages))}
    for commit in epochs.commits:
        for assignment in _assignments(commit):
            for part, seen in versions.items():
                seen.add(assignment.get(part, ""))
    for part, version in ((answer.model, answer.version), *answer.stages):
        if version not in versions[part]:
            text = f"{describe(answer)}: no epoch ever gave {part} version {version or '(none)'}"
            return Violation(UNCOMMITTED, text, (answer,))
    return Violation(MIXED, f"{describe(answer)}: no epoch had these versions together", (answer,))


def _in_order(answers: list[Answer], epochs: _Epochs) -> list[Violation]:
    """Strict order over answers that are sorted by their start, each of which some epoch explains."""
    violations = []
    bounds = {model: _Bound() for model in epochs.models}
    settled = sorted(
        (commit.settled_ns, place)
        for place, commit in enumerate(epochs.commits)
        if commit.cutover == STRICT and commit.settled_ns is not None
    )
    by_end = sorted(range(len(answers)), key=lambda number: answers[number].ended_ns)
    places = [-1] * len(answers)
    ended = known = 0
    for number, answer in enumerate(answers):
        while known < len(settled) and settled[known][0] < answer.started_ns:
            _raise(bounds, dict.fromkeys(epochs.changed(settled[known][1]), settled[known][1]), None)
            known += 1
        # Whatever ended before this one started also started before it, and has its epoch already.
        while answers[by_end[ended]].ended_ns < answer.started_ns:
            earlier = by_end[ended]
            if places[earlier] >= 0:
                _raise(bounds, epochs.implied(answers[earlier].model, places[earlier]), answers[earlier])
            ended += 1
        explaining = epochs.explaining(answer)
        bound = bounds[answer.model]
        first = bisect_left(explaining, bound.index)
        if first < len(explaining) and epochs.asked[explaining[first]] <= answer.ended_ns:
            places[number] = explaining[first]
        else:
            violations.append(_went_back(answer, bound, epochs))
    return violations


def _raise(bounds: Mapping[str, _Bound], implied: Mapping[str, int], proof: Answer | None) -> None:
    for model, index in implied.items():
        if index > bounds[model].index:
            bounds[model].index, bounds[model].proof = index, proof


def _went_back(answer: Answer, bound: _Bound, epochs: _Epochs) -> Violation:
    epoch = epochs.commits[bound.index].epoch
    if bound.proof is None:
        text = f"{describe(answer)} started after the strict commit of epoch {epoch} was known to be done"
        return Violation(WENT_BACK, text, (answer,))
    gap = (answer.started_ns - bound.proof.ended_ns) / 1e6
    text = (
        f"{describe(answer)} started {gap:.3f} ms after {describe(bound.proof)} had ended, "
        f"which the strict commit of epoch {epoch} had served"
    )
    return Violation(WENT_BACK, text, (answer, bound.proof))


def _assignments(commit: Commit) -> list[Mapping[str, str]]:
    """What may be seen in an epoch: its versions, and those with all of the canary's in their place."""
    return [commit.versions, {**commit.versions, **commit.canary}] if commit.canary else [commit.versions]


def _gives(commit: Commit, answer: Answer) -> bool:
    return any(
        assignment.get(answer.model) == answer.version
        and all(assignment.get(name) == version for name, version in answer.stages)
        for assignment in _assignments(commit)
    )


def describe(answer: Answer) -> str:
    """A request in words, short enough for a list and enough to find it."""
    stages = ", ".join(f"{name} {version}" for name, version in answer.stages)
    got = f" version {answer.version}" if answer.version else ""
    return (
        f"the request of {answer.client} through {answer.gateway} at {answer.started_ns / 1e9:.6f} s "
        f"({answer.latency_ns / 1e6:.3f} ms) for {answer.model}{got}" + (f" ({stages})" if stages else "")
    )
