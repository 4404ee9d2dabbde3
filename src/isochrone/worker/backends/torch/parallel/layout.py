"""Which rank has which part of a model: its stage, and its share of the stage's layers. Pure functions.

Ranks are numbered stage by stage: with two stages of two ranks, ranks 0 and 1 share the first stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """``tensor`` ranks share each of ``pipeline`` stages."""

    tensor: int
    pipeline: int

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline

    @property
    def last_stage(self) -> int:
        return self.pipeline - 1

    def stage_of(self, rank: int) -> int:
        return rank // self.tensor

    def share_of(self, rank: int) -> int:
        """Its number within its stage."""
        return rank % self.tensor

    def rank_of(self, stage: int, share: int) -> int:
        return stage * self.tensor + share

    def ranks_of(self, stage: int) -> list[int]:
        return [self.rank_of(stage, share) for share in range(self.tensor)]

    @property
    def answering_rank(self) -> int:
        """The rank that sends outputs to rank 0."""
        return self.rank_of(self.last_stage, 0)

    def describe(self, rank: int) -> str:
        return f"rank {rank} of {self.ranks} (stage {self.stage_of(rank)}, share {self.share_of(rank)})"


def balanced_cuts(sizes: Sequence[int], stages: int) -> list[int]:
    """Where contiguous runs of ``sizes`` begin, except the first, so that the largest run is as small as possible.

    Every run has at least one element; ``stages`` is at most ``len(sizes)``. Among the divisions with the smallest
    largest run, the runs at the beginning are as long as they can be.
    """
    if not 1 <= stages <= len(sizes):
        raise ValueError(f"{stages} stages of {len(sizes)} children")
    sums = [0]
    for size in sizes:
        sums.append(sums[-1] + size)
    # best[k][i]: the smallest largest run if the elements from i on are divided into k runs.
    best = [[0.0] * (len(sizes) + 1) for _ in range(stages + 1)]
    for start in range(len(sizes) + 1):
        best[0][start] = 0.0 if start == len(sizes) else float("inf")
    for runs in range(1, stages + 1):
        for start in range(len(sizes) + 1):
            ends = range(start + 1, len(sizes) + 1)
            best[runs][start] = min(
                (max(sums[end] - sums[start], best[runs - 1][end]) for end in ends), default=float("inf")
            )
    limit = best[stages][0]
    cuts: list[int] = []
    start = 0
    for left in range(stages - 1, 0, -1):
        start = max(
            end
            for end in range(start + 1, len(sizes) - left + 1)
            if sums[end] - sums[start] <= limit and best[left][end] <= limit
        )
        cuts.append(start)
    return cuts


def children_of(stage: int, cuts: Sequence[int], children: int) -> range:
    """The numbers of the children that a stage has."""
    bounds = [0, *cuts, children]
    return range(bounds[stage], bounds[stage + 1])


def micro_batches(rows: int, stages: int, most: int) -> list[int]:
    """The rows of each micro-batch. ``most``: rows of the largest; 0: as many micro-batches as stages."""
    if rows <= 0 or stages == 1:
        return [rows]
    count = min(rows, stages) if not most else -(-rows // most)
    least, larger = divmod(rows, count)
    return [least + 1] * larger + [least] * (count - larger)
