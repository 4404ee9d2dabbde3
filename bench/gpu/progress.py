"""What a bench says while it runs: on standard error, beside its tables."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
