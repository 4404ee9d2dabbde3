"""Counts of the error messages that a proxy or worker answered with."""

import re
from collections import Counter
from collections.abc import Iterable

from bench.worker.generator import Outcome

_LONGEST = 110


def reasons(outcome: Outcome, numbers: Iterable[int]) -> dict[str, int]:
    """Status and message, without its numbers → count; the five most frequent. Status 0: no answer."""
    found = Counter(_reason(outcome.status[number], outcome.errors.get(number, b"")) for number in numbers)
    return dict(found.most_common(5))


def _reason(status: int, answer: bytes) -> str:
    body = answer.partition(b"\r\n\r\n")[2].decode(errors="replace")
    return f"{status} {re.sub('[0-9][0-9.]*', '#', body)[:_LONGEST]}".strip()
