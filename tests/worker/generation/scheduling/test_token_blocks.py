"""The blocks of the paged cache: exact accounting, and prefixes that are really the same."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from isochrone.worker.generation.scheduling.blocks import BlockPool, BlockTable

BLOCKS, SIZE = 7, 2


def test_a_prefix_is_shared_and_never_the_whole_prompt() -> None:
    pool = BlockPool(8, 4)
    first = BlockTable(pool)
    tokens = list(range(12))
    assert first.take_prefix(tokens) == 0
    assert first.reserve(12)
    first.note_computed(tokens, 12)
    second, longer, other = BlockTable(pool), BlockTable(pool), BlockTable(pool)
    assert second.take_prefix(tokens) == 8
    assert longer.take_prefix([*tokens, 99]) == 12
    assert other.take_prefix([5, *tokens]) == 0
    assert second.blocks == first.blocks[:2]
    assert (pool.in_use, pool.free) == (3, 5)
    for table in (first, second, longer):
        table.release()
    assert pool.free == 8
    assert BlockTable(pool).take_prefix([*tokens, 1]) == 12


def test_content_stays_until_the_block_is_needed_and_ends_go_first() -> None:
    pool = BlockPool(4, 1)
    table = BlockTable(pool)
    assert table.reserve(3)
    table.note_computed([7, 8, 9], 3)
    table.release()
    taker = BlockTable(pool)
    assert taker.reserve(2)  # one was empty; the other was that of the 9
    assert len(BlockTable(pool).find_prefix([7, 8, 9, 0])) == 2
    assert not BlockTable(pool).reserve(3)
    assert pool.free == 2


def test_without_reuse_nothing_is_found() -> None:
    pool = BlockPool(4, 1, reuses_prefixes=False)
    table = BlockTable(pool)
    assert table.reserve(2)
    table.note_computed([7, 8], 2)
    assert BlockTable(pool).find_prefix([7, 8, 9]) == []
    table.release()
    assert pool.free == 4


class Pools(RuleBasedStateMachine):
    """A pool, beside a list of what each block was last written with."""

    tables: Bundle[list[object]] = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, SIZE)
        self.live: list[tuple[BlockTable, list[int], int]] = []
        #: What the memory of each block holds, as a model would have written it: tokens with all that came before.
        self.memory: dict[int, tuple[int, ...]] = {}

    @rule(target=tables, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def start(self, tokens: list[int]) -> object:
        table = BlockTable(self.pool)
        reused = table.take_prefix(tokens)
        assert reused < len(tokens)
        assert reused % SIZE == 0
        for number, block in enumerate(table.blocks):
            assert self.memory[block] == tuple(tokens[: (number + 1) * SIZE])
        free = self.pool.free
        if not table.reserve(len(tokens)):
            assert self.pool.free == free
            table.release()
            return multiple()
        for number in range(reused // SIZE, len(table.blocks)):
            self.memory[table.blocks[number]] = tuple(tokens[: (number + 1) * SIZE])
        table.note_computed(tokens, len(tokens))
        entry = [table, tokens]
        self.live.append((table, tokens, len(tokens)))
        return entry

    @rule(entry=tables, token=st.integers(0, 1))
    def grow(self, entry: list[object], token: int) -> None:
        table, tokens = entry
        assert isinstance(table, BlockTable)
        assert isinstance(tokens, list)
        if not table.reserve(len(tokens) + 1):
            return
        tokens.append(token)
        number = (len(tokens) - 1) // SIZE
        self.memory[table.blocks[number]] = tuple(tokens)
        table.note_computed(tokens, len(tokens))

    @rule(entry=consumes(tables))
    def end(self, entry: list[object]) -> None:
        table = entry[0]
        assert isinstance(table, BlockTable)
        table.release()
        self.live = [each for each in self.live if each[0] is not table]

    @invariant()
    def accounting_is_exact(self) -> None:
        held = {block for table, _, _ in self.live for block in table.blocks}
        assert self.pool.in_use == len(held)
        assert self.pool.free + self.pool.in_use == BLOCKS

    @invariant()
    def a_sequence_reads_its_own_tokens(self) -> None:
        for table, tokens, _ in self.live:
            for number, block in enumerate(table.blocks):
                if (number + 1) * SIZE <= len(tokens):
                    assert self.memory[block] == tuple(tokens[: (number + 1) * SIZE])


TestPools = Pools.TestCase
