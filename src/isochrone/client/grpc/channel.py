"""What both gRPC transports share: options of the channel, metadata as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OPTIONS = [
    # Tensors often exceed the library's limit of 4 MiB.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # By default a channel waits a second before it tries to connect again, and up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Each client has connections of its own, also to a server that another client calls.
    ("grpc.use_local_subchannel_pool", 1),
]


def fields_of(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...] | None:
    """Headers as gRPC's metadata."""
    return tuple(headers.items()) or None


def texts(metadata: Any) -> dict[str, str]:
    """Trailing metadata whose values are text."""
    return {key: value for key, value in metadata or () if isinstance(value, str)}
