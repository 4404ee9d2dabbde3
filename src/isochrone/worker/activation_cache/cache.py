"""Key frames and their outputs, within limits of bytes and age. Pure: the caller gives the time.

A picture is only ever compared with key frames, whose outputs were computed from themselves, never with the picture
before it: slow change cannot add up. A computed picture becomes the key frame of its camera and its place. A camera has
one key frame; a place has a few, since agents see it from several sides.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from isochrone.worker.activation_cache.planes import Plane
from isochrone.worker.activation_cache.settings import SPATIAL
from isochrone.worker.activation_cache.similarity import KeyPlane, Similarity, compare, key_plane
from isochrone.worker.response_cache import accounted_bytes, frozen_copy

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.activation_cache.keys import ActivationKey

#: Key frames of one place. A miss compares with each of them.
PLACE_FRAMES: Final = 4
#: Bytes of a key frame's keys, of which it has at most two: each may have a text of 256 characters of four bytes.
_KEYS_BYTES: Final = 4096

# Reasons of a miss, least informative first: that of several candidates which came nearest counts.
COLD, EXPIRED, CHANGED, LOCAL = "cold", "expired", "changed", "local"
_BY_NEARNESS: Final = (COLD, EXPIRED, CHANGED, LOCAL)


class KeyFrame:
    """A computed picture: its plane and its outputs, which are shared and read-only."""

    __slots__ = ("born", "compute_ns", "keys", "outputs", "plane", "size")

    def __init__(self, plane: KeyPlane, outputs: Tensors, size: int, born: int, compute_ns: int) -> None:
        self.plane = plane
        self.outputs = outputs
        self.born = born
        #: The time that reuse saves.
        self.compute_ns = compute_ns
        self.keys: set[ActivationKey] = set()
        #: Bytes that it is accounted for.
        self.size = size


class Hit(NamedTuple):
    """A key frame that is similar enough."""

    frame: KeyFrame
    scope: str
    similarity: Similarity


class ActivationCache:
    """Evicts the least recently used key frames; the accounted size never exceeds ``limit_bytes``."""

    __slots__ = (
        "_age_ns",
        "_block_similarity",
        "_by_key",
        "_frames",
        "_similarity",
        "bytes_used",
        "evictions",
        "limit_bytes",
    )

    def __init__(self, limit_bytes: int, age_ns: int, similarity: float, block_similarity: float) -> None:
        self.limit_bytes = limit_bytes
        self._age_ns = age_ns
        self._similarity = similarity
        self._block_similarity = block_similarity
        self.bytes_used = self.evictions = 0
        #: Least recently used first.
        self._frames: OrderedDict[KeyFrame, None] = OrderedDict()
        #: Newest first.
        self._by_key: dict[ActivationKey, list[KeyFrame]] = {}

    def __len__(self) -> int:
        return len(self._frames)

    def find(self, keys: Sequence[ActivationKey], plane: Plane, now: int) -> Hit | str:
        """The first key frame, in the order of the keys, that is similar enough; otherwise the reason of the miss."""
        nearest = 0
        for key in keys:
            for frame in tuple(self._by_key.get(key, ())):
                if now - frame.born > self._age_ns:
                    self._remove(frame)
                    nearest = max(nearest, _BY_NEARNESS.index(EXPIRED))
                    continue
                similarity = compare(frame.plane, plane)
                if similarity.mean < self._similarity:
                    nearest = max(nearest, _BY_NEARNESS.index(CHANGED))
                elif similarity.least_block < self._block_similarity:
                    nearest = max(nearest, _BY_NEARNESS.index(LOCAL))
                else:
                    self._frames.move_to_end(frame)
                    return Hit(frame, key.scope, similarity)
        return _BY_NEARNESS[nearest]

    def insert(self, keys: Sequence[ActivationKey], plane: Plane, outputs: Tensors, born: int, compute_ns: int) -> bool:
        """Makes a computed picture a key frame, of copies of its outputs; False: it is larger than the whole cache."""
        # Before anything is copied: outputs may be larger than the memory that is left.
        held = accounted_bytes(outputs)
        if held > self.limit_bytes:
            return False
        statistics = key_plane(plane)
        size = held + statistics.nbytes + _KEYS_BYTES
        if size > self.limit_bytes:
            return False
        frozen = {name: frozen_copy(tensor) for name, tensor in outputs.items()}
        frame = KeyFrame(statistics, frozen, size, born, compute_ns)
        for key in keys:
            frames = self._by_key.get(key, [])
            for replaced in frames[PLACE_FRAMES - 1 if key.scope == SPATIAL else 0 :]:
                self._unlink(replaced, key)
        while self.bytes_used + frame.size > self.limit_bytes:
            self._remove(next(iter(self._frames)))
            self.evictions += 1
        for key in keys:
            frame.keys.add(key)
            self._by_key.setdefault(key, []).insert(0, frame)
        self._frames[frame] = None
        self.bytes_used += frame.size
        return True

    def clear(self) -> None:
        self._frames.clear()
        self._by_key.clear()
        self.bytes_used = 0

    def _unlink(self, frame: KeyFrame, key: ActivationKey) -> None:
        """Takes a key from a key frame, and the frame away with its last one."""
        frame.keys.discard(key)
        frames = self._by_key[key]
        frames.remove(frame)
        if not frames:
            del self._by_key[key]
        if not frame.keys:
            del self._frames[frame]
            self.bytes_used -= frame.size

    def _remove(self, frame: KeyFrame) -> None:
        for key in tuple(frame.keys):
            self._unlink(frame, key)
