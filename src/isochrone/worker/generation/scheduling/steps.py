"""What one step computes, of which sequences, and what it gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from isochrone.worker.backends.generative import Chosen, FailedRow, Row
from isochrone.worker.generation.scheduling.sequence import TokenSequence

#: Holds the place of a token that is in flight.
_IN_FLIGHT = (0,)


@dataclass(frozen=True, slots=True)
class Step:
    """One step, and the figures that its time depends on."""

    #: Those of the first rows decode. Two lists: a pair for each row would cost as much as the row.
    sequences: list[TokenSequence]
    rows: list[Row]
    decode_rows: int = 0
    context: int = 0
    prefill: int = 0


class Output(NamedTuple):
    """A token that a step gave, and why the sequence ends with it, if it does; or why there is none."""

    sequence: TokenSequence
    chosen: Chosen | FailedRow
    finish_reason: str | None


def token_of(sequence: TokenSequence) -> Row:
    """The next token of a sequence that decodes."""
    start, blocks = sequence.computed, sequence.table.blocks
    sampling = sequence.draws.at(start + 1)
    if sequence.pending:
        return Row(_IN_FLIGHT, start, blocks, sampling, sequence.place)
    return Row((sequence.tokens[start],), start, blocks, sampling)


def chunk_of(sequence: TokenSequence, count: int) -> Row:
    """The next tokens of a prompt."""
    tokens, start = sequence.tokens, sequence.computed
    end = start + count
    sampling = sequence.draws.at(end) if end == len(tokens) else None
    # The table's own list: nothing changes it while the step runs.
    return Row(tokens[start:end], start, sequence.table.blocks, sampling)


def step_of(sequences: list[TokenSequence], rows: list[Row], decode_rows: int) -> Step:
    """The step of these rows, those that decode first. Their sequences go on as if it had been computed."""
    for place, (sequence, row) in enumerate(zip(sequences, rows, strict=True)):
        sequence.computed += len(row.tokens)
        if row.sampling is not None:
            sequence.is_decoding = True
            sequence.pending += 1
            sequence.place = place
    # Those that decode have one token each.
    prefill = sum([len(row.tokens) for row in rows[decode_rows:]])
    return Step(sequences, rows, decode_rows, decode_rows + sum([row.start for row in rows]) + prefill, prefill)
