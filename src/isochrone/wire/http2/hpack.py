"""Header compression of HTTP/2 (RFC 7541): header blocks to header lists and back.

One ``Decoder`` per connection and direction; one ``Encoder`` may serve the whole process. A stock gRPC client sends the
same few bytes for every call, so a block that does not change the dynamic table is memoised until the table changes: a
repeated block costs one lookup.

A block that the RFC calls a decoding error must never be accepted, because the tables of the two ends would differ from
then on. A block must always be decoded to its end, even if its result is not needed. The caller checks whether the
headers are a valid request (lower case, pseudo-headers, forbidden fields).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from isochrone.wire.http2.hpack_tables import HUFFMAN_PADDING_STATES, HUFFMAN_ROWS, STATIC_TABLE, Header

__all__ = [
    "DEFAULT_TABLE_SIZE",
    "EMPTY_TABLE_UPDATE",
    "Decoder",
    "Encoder",
    "Header",
    "HeaderListTooLarge",
    "HpackError",
    "decode_huffman",
    "encode_integer",
    "encode_literal",
    "is_stateless",
]

DEFAULT_TABLE_SIZE = 4096  # both ends start from this (RFC 9113 section 6.5.2)
ENTRY_OVERHEAD = 32  # counted by the RFCs for each entry in addition to its octets

# Sent once, at the start of the next block, after the peer announces a SETTINGS_HEADER_TABLE_SIZE below 4096 (section
# 4.2). The encoder keeps no table, so the size is always zero and is never sent again.
EMPTY_TABLE_UPDATE = b"\x20"

_INTEGER_LIMIT = 1 << 31
_FIRST_DYNAMIC = len(STATIC_TABLE) + 1
_LARGEST_STATIC = max(len(name) + len(value) + ENTRY_OVERHEAD for name, value in STATIC_TABLE)

_MEMO_BLOCK_BYTES = 256
_MEMO_ENTRIES = 512


class HpackError(Exception):
    """The block cannot be decoded, and the tables of the two ends differ from here on: COMPRESSION_ERROR."""


class HeaderListTooLarge(Exception):
    """The block was decoded and the table is valid, but the list exceeds a limit: only this stream is rejected."""


def decode_huffman(coded: bytes) -> bytes:
    rows = HUFFMAN_ROWS
    state = 0
    texts: list[bytes] = []
    for byte in coded:
        state, text = rows[state][byte]
        texts.append(text)
    if state not in HUFFMAN_PADDING_STATES:
        raise HpackError("Huffman string: expected an end in at most 7 one bits, and no end-of-string symbol")
    return b"".join(texts)


# All clients use a small set of names: a lookup instead of 0.8 µs for `traceparent`. Values are not shared between
# connections: they vary, and some are secrets.
_known_names: dict[bytes, bytes] = {}
_KNOWN_NAMES_ENTRIES = 512
_KNOWN_NAME_BYTES = 64


def _decode_huffman_name(coded: bytes) -> bytes:
    name = _known_names.get(coded)
    if name is None:
        name = decode_huffman(coded)
        if len(coded) <= _KNOWN_NAME_BYTES:
            if len(_known_names) >= _KNOWN_NAMES_ENTRIES:
                _known_names.clear()
            _known_names[coded] = name
    return name


def _read_continuation(block: bytes, position: int, value: int) -> tuple[int, int]:
    """The rest of an integer whose prefix was all ones (section 5.1): the integer and its end."""
    for shift in (0, 7, 14, 21, 28):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= _INTEGER_LIMIT:
                raise HpackError(f"integer {value} in a header block, expected less than {_INTEGER_LIMIT}")
            return value, position
    raise HpackError("integer in a header block goes on for more than 5 octets")


def _read_string(block: bytes, position: int, huffman: Callable[[bytes], bytes]) -> tuple[bytes, int]:
    """A string literal (section 5.2) and its end."""
    marked = block[position]
    position += 1
    size = marked & 0x7F
    if size == 0x7F:
        size, position = _read_continuation(block, position, size)
    end = position + size
    if end > len(block):
        raise HpackError(f"string in a header block should end at octet {end}, the block ends at {len(block)}")
    text = block[position:end]
    return (huffman(text) if marked >= 0x80 else text), end


class Decoder:
    """The decoder of one direction of one connection.

    ``max_table_size`` is the limit for the peer's encoder from the first block on. A lower limit, announced in
    SETTINGS, is set with ``set_max_allowed_table_size`` once the peer has acknowledged it: until then the peer may use
    4096.

    After an ``HpackError`` the decoder is unusable. After ``HeaderListTooLarge`` it is intact.
    """

    __slots__ = (
        "_allowed",
        "_capacity",
        "_field_bound",
        "_max_header_list_size",
        "_max_headers",
        "_memo",
        "_shrink_to",
        "_size",
        "_table",
        "generation",
    )

    def __init__(
        self,
        max_table_size: int = DEFAULT_TABLE_SIZE,
        max_header_list_size: int = 65536,
        max_headers: int = 256,
    ) -> None:
        self._max_header_list_size = max_header_list_size
        self._max_headers = max_headers
        # Static and dynamic entries in one list, indexed as on the wire. Position 0 is never read; new entries are
        # inserted at _FIRST_DYNAMIC, and old entries are removed at the end.
        self._table: list[Header] = [(b"", b""), *STATIC_TABLE]
        self._size = 0  # of the dynamic entries, as section 4.1 counts
        self._allowed = max_table_size
        # The table grows beyond the default only after a size update of the encoder.
        self._capacity = min(max_table_size, DEFAULT_TABLE_SIZE)
        self._field_bound = max(self._capacity, _LARGEST_STATIC)
        self._shrink_to: int | None = None  # the largest size update with which the next block must start
        self._memo: dict[bytes, tuple[Header, ...]] = {}
        #: Incremented at every change of the table: memoised results are valid while it stays the same.
        self.generation = 0

    def set_max_allowed_table_size(self, size: int) -> None:
        """Our SETTINGS_HEADER_TABLE_SIZE, once the peer has acknowledged it."""
        self._allowed = size
        if size < self._capacity and (self._shrink_to is None or size < self._shrink_to):
            # Section 4.2: of several changes between two blocks, the peer has to signal the smallest.
            self._shrink_to = size
            self._table_changes()  # a memoised block must not bypass the update that is now due

    def decode(self, block: bytes) -> tuple[Header, ...]:
        """The headers of one complete block; the same object for a memoised block."""
        known = self._memo.get(block)
        if known is not None:
            return known

        generation = self.generation
        # Of Any: compiled code would make a new tuple of every entry it takes out as a Header.
        table: list[Any] = self._table
        headers: list[Any] = []
        length = len(block)
        position = 0
        updates = 0
        try:
            while position < length:
                first = block[position]
                position += 1

                if first > 0x80:  # indexed field (section 6.1)
                    index = first & 0x7F
                    if index == 0x7F:
                        index, position = _read_continuation(block, position, index)
                    headers.append(table[index])
                    continue

                if first < 0x20:  # literal without indexing, or never indexed (6.2.2, 6.2.3)
                    index = first & 0x0F
                    if index == 0x0F:
                        index, position = _read_continuation(block, position, index)
                elif first >= 0x40:
                    if first == 0x80:
                        raise HpackError("indexed field with index 0")
                    index = first & 0x3F  # literal with incremental indexing (6.2.1)
                    if index == 0x3F:
                        index, position = _read_continuation(block, position, index)
                else:  # dynamic table size update (6.3)
                    updates += 1
                    if headers or updates > 2:
                        raise HpackError("table size update after a field, or a third one in one block")
                    size = first & 0x1F
                    if size == 0x1F:
                        size, position = _read_continuation(block, position, size)
                    self._resize(size)
                    continue

                if index:
                    name = table[index][0]
                else:
                    name, position = _read_string(block, position, _decode_huffman_name)
                value, position = _read_string(block, position, decode_huffman)
                header = (name, value)
                headers.append(header)
                if first >= 0x40:
                    self._insert(header)
        except IndexError:
            raise HpackError(
                f"header block of {length} octets ends inside a field, "
                f"or names an index outside the table of {len(table) - 1} entries"
            ) from None
        if self._shrink_to is not None:
            raise HpackError(f"expected a table size update to at most {self._shrink_to}, given none")

        self._check_limits(headers, length)
        decoded = tuple(headers)
        if generation == self.generation and length <= _MEMO_BLOCK_BYTES:
            memo = self._memo
            if len(memo) >= _MEMO_ENTRIES:
                memo.clear()
            memo[block] = decoded
        return decoded

    def _check_limits(self, headers: list[Header], block_length: int) -> None:
        # Checked after all of the block's table changes. Until here a hostile block costs one reference per octet and
        # 8/5 of its length in text, however large the entries are that it refers to.
        count = len(headers)
        if count > self._max_headers:
            raise HeaderListTooLarge(f"{count} headers, at most {self._max_headers} accepted")
        # A field is no larger than the table plus its own literals: this bound avoids most exact counts.
        if count * self._field_bound + 2 * block_length > self._max_header_list_size:
            size = sum([len(name) + len(value) for name, value in headers]) + ENTRY_OVERHEAD * count
            if size > self._max_header_list_size:
                raise HeaderListTooLarge(f"header list of {size} octets, at most {self._max_header_list_size} accepted")

    def _insert(self, header: Header) -> None:
        self._table_changes()
        size = len(header[0]) + len(header[1]) + ENTRY_OVERHEAD
        self._evict(self._capacity - size)
        # Section 4.4: an entry larger than the table empties it, and is not an error.
        if size <= self._capacity:
            self._table.insert(_FIRST_DYNAMIC, header)
            self._size += size

    def _resize(self, size: int) -> None:
        limit = self._allowed if self._shrink_to is None else self._shrink_to
        if size > limit:
            raise HpackError(f"table size update: expected at most {limit}, given {size}")
        self._shrink_to = None
        self._table_changes()
        self._capacity = size
        self._field_bound = max(size, _LARGEST_STATIC)
        self._evict(size)

    def _evict(self, limit: int) -> None:
        table = self._table
        while self._size > limit and len(table) > _FIRST_DYNAMIC:
            name, value = table.pop()
            self._size -= len(name) + len(value) + ENTRY_OVERHEAD

    def _table_changes(self) -> None:
        self.generation += 1
        self._memo.clear()


def is_stateless(block: bytes) -> bool:
    """Whether a block that has been decoded reads the same on every connection: it neither uses nor changes the dynamic
    table."""
    position, length = 0, len(block)
    while position < length:
        first = block[position]
        position += 1
        if first >= 0x80:
            if first & 0x7F >= _FIRST_DYNAMIC:
                return False
            continue
        if first >= 0x20:
            return False  # an entry for the table, or its size
        index = first & 0x0F
        if index == 0x0F:
            index, position = _read_continuation(block, position, index)
            if index >= _FIRST_DYNAMIC:
                return False
        for _ in range(1 if index else 2):
            size = block[position] & 0x7F
            position += 1
            if size == 0x7F:
                size, position = _read_continuation(block, position, size)
            position += size
    return True


def encode_integer(value: int, prefix_bits: int, pattern: int = 0) -> bytes:
    """Encode an integer (section 5.1); its first octet carries ``pattern`` above the prefix."""
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((pattern | value,))
    octets = bytearray((pattern | limit,))
    value -= limit
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


_SHORT_LENGTHS = tuple(bytes((length,)) for length in range(0x7F))
_STATIC_FIELDS = {header: encode_integer(index, 7, 0x80) for index, header in enumerate(STATIC_TABLE, 1)}
# Reversed, so that the lowest index of several entries with one name remains.
_STATIC_NAMES = {name: encode_integer(index, 4) for index, (name, _) in reversed(list(enumerate(STATIC_TABLE, 1)))}


def _encode_string(text: bytes) -> bytes:
    # Never Huffman-coded: coding costs more time at both ends than the saved octets take on the wire.
    length = len(text)
    return (_SHORT_LENGTHS[length] if length < 0x7F else encode_integer(length, 7)) + text


def encode_literal(name: bytes, value: bytes) -> bytes:
    """Encode a literal field without indexing (section 6.2.2); the name is an index if the static table has it."""
    return (_STATIC_NAMES.get(name) or b"\x00" + _encode_string(name)) + _encode_string(value)


class Encoder:
    """A stateless encoder: its blocks may be cached and sent on any connection."""

    __slots__ = ()

    def encode(self, headers: Iterable[Header]) -> bytes:
        return b"".join([_STATIC_FIELDS.get(header) or encode_literal(*header) for header in headers])
