"""Steps of sharp samples, compared with an independent computation of their logits."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import numpy as np

from generation_models import VOCABULARY, Floats, reference_logits
from isochrone.worker.backends.generative import Chosen, Row, Sampling

LIMITS = {"max_rows": "20", "kv_cache_tokens": "2048", "prefill_tokens": "150"}
GREEDY = Sampling(temperature=0.0)
#: The largest deviation by type. On CPUs deviations reach 5e-6, 0.02 and 0.17; wrong blocks have medians of 2.7 to 10.
TOLERANCES = {"float32": 1e-4, "float16": 0.1, "bfloat16": 0.5}
#: Sequences with what was chosen after each.
Found = list[tuple[list[int], Chosen]]


def deviation(directory: Path, tokens: list[int], chosen: Chosen) -> float:
    """How far a greedy choice is from the reference: the error of its log probability, or how much less probable the
    token is than the best one. So another token than the best one passes only where the two are nearly equal."""
    logits = _last_logits(directory, tuple(tokens))
    log_probabilities = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    own = log_probabilities[chosen.token]
    return float(max(abs(chosen.log_probability - own), log_probabilities.max() - own))


@functools.cache
def _last_logits(directory: Path, tokens: tuple[int, ...]) -> Floats:
    """Computed once: every type and every fault has the same sequences."""
    return reference_logits(directory, list(tokens))[-1]


def deviations(directory: Path, found: Found) -> list[float]:
    return [deviation(directory, tokens, chosen) for tokens, chosen in found]


def decoded(executable: Any, sampling: Sampling = GREEDY) -> Found:
    """Prompts of 17 rows in two steps each, then three steps of one token: sizes that are padded."""
    chance = random.Random(3)
    blocks = [[7 * row + number for number in range(3)] for row in range(17)]
    tokens = [chance.choices(range(VOCABULARY), k=20) for _ in range(17)]
    found: Found = []
    for row in range(17):
        executable.launch([Row(tokens[row][:13], 0, blocks[row], None)])
        executable.collect()
        executable.launch([Row(tokens[row][13:17], 13, blocks[row], sampling)])
        found += [(tokens[row][:17], chosen) for chosen in executable.collect()]
    for position in (17, 18, 19):
        executable.launch(
            [Row(tokens[row][position : position + 1], position, blocks[row], sampling) for row in range(17)]
        )
        found += [(tokens[row][: position + 1], chosen) for row, chosen in enumerate(executable.collect())]
    return found


def prompted(executable: Any, chunk: int, sampling: Sampling = GREEDY) -> Found:
    """Prompts of 2 to 90 tokens, several in a step and cut into chunks, beside a row that decodes."""
    chance = random.Random(5)
    lengths = [2, 90, 5, 31, 17, 64, 48, 3, 16]
    tokens = [chance.choices(range(VOCABULARY), k=length) for length in lengths]
    blocks = [[10 * row + number for number in range(6)] for row in range(len(lengths))]
    done, found = [0] * len(lengths), {}
    while done != lengths:
        rows, members, budget = [Row([7], 0, [100], sampling)], [-1], executable.limits.prefill_tokens
        for number, length in enumerate(lengths):
            count = min(length - done[number], chunk, budget)
            if count:
                budget -= count
                part = tokens[number][done[number] : done[number] + count]
                done[number] += count
                rows.append(
                    Row(part, done[number] - count, blocks[number], sampling if done[number] == length else None)
                )
                members.append(number)
        executable.launch(rows)
        for number, row, chosen in zip(members, rows, executable.collect(), strict=True):
            assert (chosen is None) == (row.sampling is None)
            if chosen is not None:
                found[number] = chosen
    return [([7] if number < 0 else tokens[number], found[number]) for number in sorted(found)]
