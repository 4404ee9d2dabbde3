"""A random sample of a model's live requests, kept while somebody asks for it: to be replayed to another version. Pure.

Every request draws a number; those with the smallest are kept, as many as fit. So at any time each request that was
offered is in the sample with the same chance, whenever it came. Memory is bounded. Bodies are callers' data: they are
kept here only, and forgotten when nobody has asked for a while.
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random

import msgspec

from isochrone.clock import SECOND
from isochrone.wire.exchange import Buffer, Headers

#: Sampling goes on for so long after it was last asked for.
ASKED_NS = 10 * SECOND
#: Models sampled at once.
_MAX_MODELS = 16
#: Headers without which a body cannot be read.
_REPLAYED = frozenset((b"content-type", b"inference-header-content-length", b"content-encoding"))

HTTP, GRPC = "http", "grpc"
#: Only plain inference is replayed: it has one answer and no effects.
_HTTP_PATH = b"/infer"
GRPC_PATH = b"/inference.GRPCInferenceService/ModelInfer"

#: A parameter of requests that must not be replayed: their answer is written into a caller's memory.
SHARED_MEMORY = b"shared_memory_region"


class Sample(msgspec.Struct, frozen=True):
    """One request. In JSON its body is base64."""

    #: "http", or "grpc": then the body is one message, without prefix and not compressed.
    protocol: str
    #: Of HTTP: what follows model and version, with its query.
    path: str
    headers: dict[str, str]
    body: bytes


class SampleReport(msgspec.Struct, frozen=True):
    """The sample as it is now."""

    model: str
    #: Requests it was drawn from, and those that were drawn and too large to keep.
    seen: int
    left_out: int
    samples: tuple[Sample, ...]


class Samples:
    """The sample of one model."""

    __slots__ = ("_bytes", "_kept", "_random", "_threshold", "left_out", "limit", "max_bytes", "seen", "until")

    def __init__(self, limit: int = 64, max_bytes: int = 4 << 20, random: Random | None = None) -> None:
        self.limit = limit
        #: Of all bodies together. A body of more than a quarter of it is left out: a few must not make the sample.
        self.max_bytes = max_bytes
        self._random = random or Random()
        #: Largest draw first: (-draw, order, sample).
        self._kept: list[tuple[float, int, Sample]] = []
        self._bytes = 0
        #: Draws from here on are not kept; only falls.
        self._threshold = 1.0
        self.seen = 0
        self.left_out = 0
        #: Monotonic ns when it ends unless somebody asks again.
        self.until = 0

    def offer(self, protocol: str, path: bytes, headers: Headers, body: Buffer, start: int = 0) -> None:
        """A stateless inference request came. The body from ``start`` on is copied if it is kept."""
        if path.partition(b"?")[0] != (_HTTP_PATH if protocol == HTTP else GRPC_PATH):
            return
        self.seen += 1
        draw = self._random.random()
        if draw >= self._threshold:
            return
        size = len(body) - start
        if size > self.max_bytes // 4:
            self.left_out += 1
            return
        copy = bytes(memoryview(body)[start:])
        if SHARED_MEMORY in copy:
            return
        kept = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name in _REPLAYED and protocol == HTTP
        }
        sample = Sample(protocol, path.decode("latin-1"), kept, copy)
        self._bytes += size
        heappush(self._kept, (-draw, self.seen, sample))
        while len(self._kept) > self.limit or self._bytes > self.max_bytes:
            dropped, _, sample = heappop(self._kept)
            self._bytes -= len(sample.body)
            self._threshold = -dropped

    def report(self, model: str = "") -> SampleReport:
        return SampleReport(model, self.seen, self.left_out, tuple(entry[2] for entry in self._kept))


class Sampling:
    """The samples of one gateway, by model. ``on`` is empty most of the time: forwarding looks there and goes on."""

    def __init__(self, random: Random | None = None) -> None:
        self._random = random
        self.on: dict[str, Samples] = {}

    def ask(self, model: str, now: int) -> SampleReport:
        """What was sampled so far. The first question switches sampling on; each one keeps it on for a while."""
        self.sweep(now)
        samples = self.on.get(model)
        if samples is None:
            if len(self.on) >= _MAX_MODELS:
                return SampleReport(model, 0, 0, ())
            samples = self.on[model] = Samples(random=self._random)
        samples.until = now + ASKED_NS
        return samples.report(model)

    def sweep(self, now: int) -> None:
        """Forgets what nobody asks for any more. To be called now and then."""
        if self.on:
            for model in [model for model, samples in self.on.items() if samples.until <= now]:
                del self.on[model]
