"""The targets, one module for each kind of input."""

from __future__ import annotations

from fuzz.target import Target
from fuzz.targets import compressed, files, grpc, headers, http1, http2, peers, records, rest

TARGETS: tuple[Target, ...] = tuple(
    target
    for module in (http1, http2, grpc, rest, headers, compressed, files, records, peers)
    for target in module.TARGETS
)
