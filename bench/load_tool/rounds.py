"""The order of tools in each round: every tool is first as often as any other, and follows others than before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def orders(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """One order for each round: turned by one each time, and in the opposite direction in every second round."""
    for number in range(rounds):
        turn = number // 2 % len(names)
        turned = [*names[turn:], *names[:turn]]
        yield turned if number % 2 == 0 else turned[::-1]
