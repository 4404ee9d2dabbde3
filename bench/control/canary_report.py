"""Report of canary rollouts: verdicts beside the expected ones, shares of the new version, errors of clients.

Pure: rollout records and the clients' history in, figures and lines out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.control.history import ERROR, OK, Answer
from bench.control.trial_models import ON_PURPOSE

EQUAL, SLOWER, FAILING = "equal", "slower", "failing"
#: The expected end of each kind's rollout.
EXPECTED = {EQUAL: "done", SLOWER: "aborted", FAILING: "aborted"}
#: A canary counts as rolled back if its reason says so.
_WORSE = "is worse:"
#: Gateways see a commit one after the other; an agent's version is settled after this long.
_SETTLE_NS = 1_000_000_000


@dataclass(frozen=True)
class Rollout:
    """One canary rollout that is over; instants are the clients' (monotonic ns)."""

    kind: str
    version: str
    state: str
    reason: str
    asked_ns: int
    ended_ns: int
    #: When each step was committed, and when the last was over.
    steps_ns: tuple[int, ...]
    tried_until_ns: int

    @classmethod
    def of(
        cls, kind: str, record: Mapping[str, Any], reason: str, asked_ns: int, ended_ns: int, offset: int
    ) -> Rollout:
        """``offset``: what the wall clock, by which the record goes, is ahead of the monotonic one."""
        since = {name: int(at * 1e9) - offset for name, at in record["since"].items()}
        steps = tuple(at for name, at in since.items() if name.startswith("step "))
        (change,) = record["changes"].values()
        until = since.get("switching", since.get("aborting", ended_ns))
        return cls(kind, str(change["version"]), record["state"], reason, asked_ns, ended_ns, steps, until)

    @property
    def is_right(self) -> bool:
        judged = self.state == "done" or _WORSE in self.reason
        return self.state == EXPECTED[self.kind] and judged

    @property
    def seconds(self) -> float:
        return (self.tried_until_ns - self.steps_ns[0]) / 1e9 if self.steps_ns else 0.0


@dataclass(frozen=True)
class Seen:
    """The clients' view of one rollout's canary."""

    requests: int
    new: int
    #: Agents that had two versions within a step.
    unsettled: int

    @property
    def share(self) -> float:
        return self.new / self.requests if self.requests else 0.0


def seen(rollout: Rollout, history: Sequence[Answer]) -> Seen:
    """Counted by the answers that came while the canary was on."""
    if not rollout.steps_ns:
        return Seen(0, 0, 0)
    began, until = rollout.steps_ns[0], rollout.tried_until_ns
    answers = [answer for answer in history if began <= answer.started_ns and answer.ended_ns <= until]
    new = sum(answer.version == rollout.version or is_on_purpose(answer) for answer in answers)
    unsettled = 0
    for start, end in zip(rollout.steps_ns, (*rollout.steps_ns[1:], until), strict=True):
        versions = defaultdict(set)
        for answer in answers:
            if answer.outcome == OK and start + _SETTLE_NS <= answer.started_ns and answer.ended_ns <= end:
                versions[answer.client.partition("/")[2]].add(answer.version)
        unsettled += sum(len(had) > 1 for agent, had in versions.items() if agent)
    return Seen(len(answers), new, unsettled)


def is_on_purpose(answer: Answer) -> bool:
    return answer.outcome == ERROR and ON_PURPOSE in answer.error


def unasked_failures(history: Sequence[Answer], rollouts: Sequence[Rollout]) -> list[Answer]:
    """Requests that failed, other than those a failing version failed while it was being tried."""
    windows = [(each.asked_ns, each.ended_ns) for each in rollouts if each.kind == FAILING]

    def is_expected(answer: Answer) -> bool:
        return is_on_purpose(answer) and any(
            first <= answer.started_ns and answer.ended_ns <= last for first, last in windows
        )

    return [answer for answer in history if answer.outcome != OK and not is_expected(answer)]


def line(number: int, rollout: Rollout, seen: Seen) -> str:
    verdict = "promoted" if rollout.state == "done" else "rolled back"
    return (
        f"{number:3d}  {rollout.kind:8s} {verdict:11s} {'' if rollout.is_right else 'WRONG ':s}"
        f"{rollout.seconds:6.1f} s  {seen.share:5.1%} of {seen.requests:,} requests got it  {rollout.reason}"
    )


def summary(rollouts: Sequence[Rollout]) -> list[str]:
    words = {EQUAL: "promoted", SLOWER: "rolled back", FAILING: "rolled back"}
    lines = []
    for kind, word in words.items():
        of_kind = [each for each in rollouts if each.kind == kind]
        if of_kind:
            right = sum(each.is_right for each in of_kind)
            seconds = sorted(each.seconds for each in of_kind)
            middle = seconds[len(seconds) // 2]
            times = f"median {middle:.0f} s, longest {seconds[-1]:.0f} s"
            lines.append(f"{kind:8s} {word} {right} of {len(of_kind)}; {times}")
    return lines


def as_json(rollouts: Sequence[Rollout], seen: Sequence[Seen]) -> list[dict[str, Any]]:
    return [
        {**asdict(rollout), "seconds": rollout.seconds, "right": rollout.is_right, **asdict(one)}
        for rollout, one in zip(rollouts, seen, strict=True)
    ]
