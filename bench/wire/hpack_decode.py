"""Microseconds per decoded header block: ours beside the ``hpack`` package, in one alternating run.

    python bench/wire/hpack_decode.py

Three shapes a gRPC server sees: a block it has seen before (a stock client's every call), the same indexed
prefix with a fresh literal (a client that sends ``traceparent``), and the first block of a connection, its
decoder newly created (every field new).

Not named after the package it measures against, which it would then hide from its own import.

It proves nothing about a server under load. One thread, warm caches, no sockets.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import hpack

from isochrone.wire.http2.hpack import Decoder, encode_integer

Block = bytes
CALLS = 2_000
ROUNDS = 7

CALL_HEADERS = [
    (b":scheme", b"http"),
    (b":method", b"POST"),
    (b":authority", b"127.0.0.1:8001"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"grpc-python/1.66.1 grpc-c/43.0.0 (linux; chttp2)"),
    (b"grpc-accept-encoding", b"identity, deflate, gzip"),
]


def traceparent(generator: random.Random) -> bytes:
    return b"00-%032x-%016x-01" % (generator.getrandbits(128), generator.getrandbits(64))


def huffman(text: bytes) -> bytes:
    encoder = hpack.Encoder()
    coded: bytes = encoder.huffman_coder.encode(text)
    return encode_integer(len(coded), 7, 0x80) + coded


def first_block() -> Block:
    return bytes(hpack.Encoder().encode(CALL_HEADERS))


def repeated_block() -> Block:
    encoder = hpack.Encoder()
    encoder.encode(CALL_HEADERS)
    return bytes(encoder.encode(CALL_HEADERS))


def traced_blocks(coded: bool) -> list[Block]:
    """The repeated block and one literal that is different in each, with a new name, not indexed."""
    generator = random.Random(7541)
    prefix = repeated_block() + b"\x00"
    blocks = []
    for _ in range(CALLS):
        value = traceparent(generator)
        if coded:
            blocks.append(prefix + huffman(b"traceparent") + huffman(value))
        else:
            blocks.append(prefix + b"\x0btraceparent" + encode_integer(len(value), 7) + value)
    return blocks


def ours(warm: bool) -> Callable[[Block], object]:
    if not warm:
        return lambda block: Decoder().decode(block)
    decoder = Decoder()
    decoder.decode(first_block())
    return decoder.decode


def theirs(warm: bool) -> Callable[[Block], object]:
    if not warm:
        return lambda block: hpack.Decoder().decode(block, raw=True)
    decoder = hpack.Decoder()
    decoder.decode(first_block(), raw=True)
    return lambda block: decoder.decode(block, raw=True)


def microseconds(decode: Callable[[Block], object], blocks: list[Block]) -> float:
    started = time.perf_counter()
    for block in blocks:
        decode(block)
    return (time.perf_counter() - started) / len(blocks) * 1e6


def main() -> None:
    shapes: list[tuple[str, bool, list[Block]]] = [
        ("seen before (8 indexed fields)", True, [repeated_block()] * CALLS),
        ("8 indexed + literal, Huffman-coded", True, traced_blocks(coded=True)),
        ("8 indexed + literal, plain", True, traced_blocks(coded=False)),
        ("all new (first of a connection)", False, [first_block()] * CALLS),
    ]
    print(f"{'µs per block, best of ' + str(ROUNDS):38}{'isochrone':>10}{'hpack':>10}{'ratio':>8}")
    for label, warm, blocks in shapes:
        best = [float("inf"), float("inf")]
        for _ in range(ROUNDS):
            for side, make in enumerate((ours, theirs)):
                best[side] = min(best[side], microseconds(make(warm), blocks))
        print(f"{label:38}{best[0]:10.2f}{best[1]:10.2f}{best[1] / best[0]:8.1f}")


if __name__ == "__main__":
    main()
