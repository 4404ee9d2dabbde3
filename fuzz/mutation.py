"""Plain mutations of inputs, without a look at coverage: in ``make test``, and in ``make fuzz`` without atheris.

The same seed gives the same mutations.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from fuzz.target import MAX_BYTES

#: Bytes that mean something to one format or another: ends of lines, quotes, brackets, lengths at their limits.
_BYTES = b"\x00\x01\x7f\x80\xff\r\n\t \"'\\{}[]:,;=%-+.0129aZ"
_PIECES = (
    *(b"\r\n", b"\r\n\r\n", b"\n\n", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\x7f", b"\x80\x80\x01"),
    *(
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"9" * 25,
        b"-1",
        b"0x10",
        b"null",
        b"true",
        b"\\ud800",
        b"\xed\xa0\x80",
        b"\xff\xfe",
    ),
    *(b"transfer-encoding: chunked\r\n", b"content-length: 1\r\n", b"%2e%2e%2f", b"../", b"\xe2\x80\xa8", b"\0\0\0\0"),
)


def mutations(inputs: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Endlessly: one of the inputs with one to six changes."""
    dice = random.Random(seed)
    while True:
        data = bytearray(dice.choice(inputs))
        for _ in range(dice.choice((1, 1, 1, 2, 2, 3, 6))):
            _change(data, inputs, dice)
        yield bytes(data[:MAX_BYTES])


def _change(data: bytearray, inputs: Sequence[bytes], dice: random.Random) -> None:
    place = dice.randrange(len(data) + 1)
    end = min(len(data), place + dice.choice((1, 1, 2, 4, 16, 64)))
    match dice.randrange(9):
        case 0 if place < len(data):
            data[place] ^= 1 << dice.randrange(8)
        case 1 if place < len(data):
            data[place] = dice.choice(_BYTES)
        case 2:
            data[place:place] = bytes((dice.choice(_BYTES),))
        case 3:
            del data[place:end]
        case 4:
            data[place:place] = data[place:end]
        case 5:
            data[place:place] = dice.choice(_PIECES)
        case 6:
            del data[place:]
        case 7:
            other = dice.choice(inputs)
            start = dice.randrange(len(other) + 1)
            data[place:end] = other[start : start + dice.choice((1, 4, 16, 64))]
        case _:
            data[place:end] = bytes(dice.randrange(256) for _ in range(end - place))
