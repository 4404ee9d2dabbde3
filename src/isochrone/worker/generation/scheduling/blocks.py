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

    def find_prefix(self, digests: Sequence[bytes]) -> list[int]:
        """The blocks of the longest known beginning of a sequence. Nothing is taken yet."""
        blocks: list[int] = []
        for digest in digests if self._reuses else ():
            block = self._block_by_digest.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

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

    def seal(self, block: int, digest: bytes) -> None:
        """A block is full and computed: others can find it from now on."""
        # Of two sequences that computed the same tokens at the same time, the first one's block stays known.
        if self._reuses and digest not in self._block_by_digest:
            self._block_by_digest[digest] = block
            self._digest_of[block] = digest

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

    def forget(self, blocks: Sequence[int]) -> None:
        """The content of blocks must not be found again; those that hold them keep them."""
        for block in blocks:
            if self._digest_of[block] is not None:
                self._forget(block)
                if block in self._kept:
                    del self._kept[block]
                    self._empty.append(block)

    def _forget(self, block: int) -> None:
        digest = self._digest_of[block]
        assert digest is not None
        del self._block_by_digest[digest]
        self._digest_of[block] = None


class BlockTable:
    """The blocks of one sequence, in order."""

    __slots__ = ("_digests", "_pool", "_sealed", "blocks")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[int] = []
        #: Names of the contents of the sequence's first blocks, as far as somebody asked for them.
        self._digests: list[bytes] = []
        #: How many of the blocks are full and computed.
        self._sealed = 0

    @property
    def room(self) -> int:
        """Tokens that the blocks hold."""
        return len(self.blocks) * self._pool.block_tokens

    def find_prefix(self, tokens: Sequence[int]) -> list[int]:
        """The blocks that hold the longest known beginning of the sequence's tokens.

        Never all of the tokens: the one that follows is computed from the last one.
        """
        most = (len(tokens) - 1) // self._pool.block_tokens
        return self._pool.find_prefix(self._digests_of(tokens, most)[:most])

    def take_prefix(self, tokens: Sequence[int]) -> int:
        """Takes the blocks of the longest known beginning; returns its tokens. Only for an empty table."""
        self.blocks = self.find_prefix(tokens)
        self._pool.hold(self.blocks)
        self._sealed = len(self.blocks)
        return self._sealed * self._pool.block_tokens

    def reserve(self, tokens: int) -> bool:
        """Makes room for so many tokens, or changes nothing and returns False."""
        if self.room >= tokens:
            return True
        missing = self._pool.blocks_for(tokens) - len(self.blocks)
        if missing > self._pool.free:
            return False
        for _ in range(missing):
            block = self._pool.allocate()
            assert block is not None
            self.blocks.append(block)
        return True

    def note_computed(self, tokens: Sequence[int], computed: int) -> None:
        """The first ``computed`` of the sequence's tokens are in the blocks: full ones are sealed."""
        full = computed // self._pool.block_tokens
        if full > self._sealed:
            digests = self._digests_of(tokens, full)
            for number in range(self._sealed, full):
                self._pool.seal(self.blocks[number], digests[number])
            self._sealed = full

    def release(self) -> None:
        self._pool.release(self.blocks)
        self.blocks = []
        self._sealed = 0

    def _digests_of(self, tokens: Sequence[int], blocks: int) -> list[bytes]:
        """Those of the first blocks, at least so many. They are kept: a sequence that waits asks at every step."""
        size, digests = self._pool.block_tokens, self._digests
        for number in range(len(digests), blocks):
            parent = digests[-1] if digests else _START
            digests.append(_digest(parent, tokens[number * size : (number + 1) * size]))
        return digests


def _digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()
