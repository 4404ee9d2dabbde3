"""Which workers were lately sent prompts that begin in a certain way. Pure.

A prompt is cut into pieces. The hash of a piece includes the hash of the piece before it, so that one hash stands for
everything up to that piece: two prompts have the same n-th hash if they begin with the same n pieces. The index maps a
hash to the workers that were sent such a prompt, and forgets what was not used for longest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

#: Workers remembered per hash: a beginning that many workers have spreads by load anyway.
_HOLDERS = 8


def chain_of(prompt: bytes, piece: int, most: int) -> list[bytes]:
    """The hashes of a prompt's whole pieces, at most ``most``. A prompt shorter than a piece is one."""
    if not prompt:
        return []
    chain: list[bytes] = []
    before = b""
    for end in range(piece, min(len(prompt), piece * most) + 1, piece):
        before = blake2b(prompt[end - piece : end], digest_size=8, key=before).digest()
        chain.append(before)
    return chain or [blake2b(prompt, digest_size=8).digest()]


class PrefixIndex:
    """The workers of each hash, by address, the last one first."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._holders: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def holders(self, piece: bytes) -> tuple[str, ...]:
        return self._holders.get(piece, ())

    def add(self, chain: Sequence[bytes], address: str) -> None:
        """A worker was sent a prompt."""
        holders = self._holders
        # The end first: when room is needed, the longest beginnings go before those that they continue.
        for piece in reversed(chain):
            known = holders.get(piece, ())
            if not known or known[0] != address:
                others = [each for each in known if each != address]
                holders[piece] = (address, *others[: _HOLDERS - 1])
            holders.move_to_end(piece)
        while len(holders) > self._entries:
            holders.popitem(last=False)
