"""What a proxy or a worker told those it did not serve, counted: a failure without its words cannot be understood."""

import re
from collections import Counter
from collections.abc import Iterable

from bench.worker.generator import Outcome

_LONGEST = 110


def reasons(outcome: Outcome, numbers: Iterable[int]) -> dict[str, int]:
    """Status and words, numbers in them left out → how often; the most frequent five. Status 0: no answer came."""
    found = Counter(_reason(outcome.status[number], outcome.errors.get(number, b"")) for number in numbers)
    return dict(found.most_common(5))


def _reason(status: int, answer: bytes) -> str:
    body = answer.partition(b"\r\n\r\n")[2].decode(errors="replace")
    return f"{status} {re.sub('[0-9][0-9.]*', '#', body)[:_LONGEST]}".strip()
