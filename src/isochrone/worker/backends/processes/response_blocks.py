"""The blocks in which the process of an isolated model answers.

The server sends a large answer from its block in place, so a block is lent until that is done. A small answer is
copied: it must not occupy a large block.
"""

from __future__ import annotations

from isochrone.worker.backends.processes.shared_block import SharedBlock

#: Blocks that may still be lent when the next call begins. The content of one more is always copied.
BLOCKS_LENT = 3
#: Answers up to this size are copied.
_COPIED_BYTES = 64 * 1024


class ResponseBlocks:
    """The blocks of one executable, by number."""

    def __init__(self) -> None:
        self.blocks = [SharedBlock.create(f"isochrone-response-{n}") for n in range(BLOCKS_LENT + 1)]

    def free(self) -> int:
        """A block that is not lent; ``BLOCKS_LENT`` if all are."""
        for number in range(BLOCKS_LENT):
            if not self.blocks[number].in_use():
                return number
        return BLOCKS_LENT

    def is_copied(self, number: int, size: int) -> bool:
        """Whether an answer of ``size`` bytes in this block is copied."""
        return number == BLOCKS_LENT or size <= _COPIED_BYTES
