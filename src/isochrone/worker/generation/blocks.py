"""The blocks of a paged cache of keys and values: which are free, who holds them, and what full ones contain.

Pure accounting: the model owns the memory, this module the numbers. A full block never changes any more, so sequences
with the same beginning share its blocks without a copy. Its content is named by a hash over the blocks before it and
its own tokens. A block that nobody holds keeps its content, and can be taken again, until the block is needed for
something else; the least recently used goes first.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

#: The digest before the first block.
_START = b""


class BlockPool:
    """All blocks of one instance. ``free + in_use == total`` at all times."""

    def __init__(self, total: int, block_tokens: int, *, reuses_prefixes: bool = True) -> None:
        self.total = total
        self.block_tokens = block_tokens
        self._reuses = reuses_prefixes
        #: How many sequences hold each block.
        self._holders = [0] * total
        #: Free blocks without content; the last is taken first.
        self._empty = list(range(total - 1, -1, -1))
        #: Free blocks with content, least recently used first.
        self._kept: dict[int, None] = {}
        self._block_by_digest: dict[bytes, int] = {}
        self._digest_of: list[bytes | None] = [None] * total

    @property
    def free(self) -> int:
        """Blocks that no sequence holds, with or without content."""
        return len(self._empty) + len(self._kept)

    @property
    def in_use(self) -> int:
        return self.total - self.free

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def find_prefix(self, tokens: Sequence[int]) -> tuple[list[int], list[bytes]]:
        """The blocks that hold the longest known beginning of ``tokens``, and their digests.

        Never all of them: the token that follows is computed from the last one. Nothing is taken yet.
        """
        blocks: list[int] = []
        digests: list[bytes] = []
        if not self._reuses:
            return blocks, digests
        size, digest = self.block_tokens, _START
        for start in range(0, (len(tokens) - 1) // size * size, size):
            digest = _digest(digest, tokens[start : start + size])
            block = self._block_by_digest.get(digest)
            if block is None:
                break
            blocks.append(block)
            digests.append(digest)
        return blocks, digests

    def held_of(self, blocks: Sequence[int]) -> int:
        """How many of some blocks sequences hold: taking the others makes free blocks fewer."""
        return sum(self._holders[block] > 0 for block in blocks)

    def is_held_once(self, block: int) -> bool:
        return self._holders[block] == 1

    def hold(self, blocks: Sequence[int]) -> None:
        """One more sequence holds blocks with known content."""
        for block in blocks:
            if not self._holders[block]:
                del self._kept[block]
            self._holders[block] += 1

    def allocate(self) -> int | None:
        """A block for new content, which one sequence holds; None: every block is held."""
        if self._empty:
            block = self._empty.pop()
        elif self._kept:
            block = next(iter(self._kept))
            del self._kept[block]
            self._forget(block)
        else:
            return None
        self._holders[block] = 1
        return block

    def seal(self, block: int, parent: bytes, tokens: Sequence[int]) -> bytes:
        """A block is full and computed: others can find it from now on. Returns its digest."""
        digest = _digest(parent, tokens)
        # Of two sequences that computed the same tokens at the same time, the first one's block stays known.
        if self._reuses and digest not in self._block_by_digest:
            self._block_by_digest[digest] = block
            self._digest_of[block] = digest
        return digest

    def release(self, blocks: Sequence[int]) -> None:
        """One sequence less holds blocks, given in their order in the sequence."""
        # The end of a sequence is the part that others are least likely to share: it is overwritten first.
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if self._digest_of[block] is None:
                self._empty.append(block)
            else:
                self._kept[block] = None

    def _forget(self, block: int) -> None:
        digest = self._digest_of[block]
        assert digest is not None
        del self._block_by_digest[digest]
        self._digest_of[block] = None


class BlockTable:
    """The blocks of one sequence, in order."""

    __slots__ = ("_digests", "_pool", "blocks")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[int] = []
        #: Of the blocks that are full and computed.
        self._digests: list[bytes] = []

    def take_prefix(self, tokens: Sequence[int]) -> int:
        """Takes the blocks of the longest known beginning; returns its tokens. Only for an empty table."""
        blocks, digests = self._pool.find_prefix(tokens)
        self._pool.hold(blocks)
        self.blocks, self._digests = blocks, digests
        return len(blocks) * self._pool.block_tokens

    def missing(self, tokens: int) -> int:
        """Blocks that are missing for so many tokens."""
        return max(0, self._pool.blocks_for(tokens) - len(self.blocks))

    def reserve(self, tokens: int) -> bool:
        """Makes room for so many tokens, or changes nothing and returns False."""
        missing = self.missing(tokens)
        if missing > self._pool.free:
            return False
        for _ in range(missing):
            block = self._pool.allocate()
            assert block is not None
            self.blocks.append(block)
        return True

    def note_computed(self, tokens: Sequence[int], computed: int) -> None:
        """The first ``computed`` of the sequence's tokens are in the blocks: full ones are sealed."""
        size = self._pool.block_tokens
        while (len(self._digests) + 1) * size <= computed:
            number = len(self._digests)
            parent = self._digests[-1] if self._digests else _START
            own = tokens[number * size : (number + 1) * size]
            self._digests.append(self._pool.seal(self.blocks[number], parent, own))

    def release(self) -> None:
        self._pool.release(self.blocks)
        self.blocks, self._digests = [], []


def _digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()
