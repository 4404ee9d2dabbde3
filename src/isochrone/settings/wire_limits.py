"""Limits of the wire, validated once and immutable. Every field documents its unit, default and reason.

The worker's own settings are with the command that reads them. No setting comes from the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

KIB = 1024
MIB = 1024 * 1024
#: Connections that may wait to be accepted, of one listening socket. The kernel limits it to net.core.somaxconn, which
#: is this number by default.
LISTEN_BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Limits on the resources that one peer may use. Errors name the limit that was exceeded."""

    #: Bytes of one message head (request line and header fields; on HTTP/2 the encoded block). Larger: 431.
    max_head_bytes: int = 64 * KIB
    #: Header fields in one message. More: 431.
    max_headers: int = 128
    #: Bytes that the remembered heads of one listener take, over HTTP/1.1 and over HTTP/2 each (an estimate): those of
    #: some 8,000 callers with tokens of their own. Beyond, the oldest are forgotten, and parsed again.
    max_memoised_head_bytes: int = 32 * MIB
    #: Bytes of one request body, before and after decompression. Larger: 413. Large enough for video frames.
    max_body_bytes: int = 256 * MIB
    #: Connections of one listener. Further connections are answered with 503 and closed.
    max_connections: int = 32_768
    #: Concurrent HTTP/2 streams of one connection; further streams are rejected (REFUSED_STREAM).
    max_streams: int = 1024
    #: Concurrent HTTP/1.1 requests of one connection (pipelining); at the limit, reading pauses.
    max_pipelined: int = 64
    #: Seconds a connection may stay without a request. Fleets keep connections open, so it is long.
    idle_timeout: float = 3600.0
    #: Seconds from a message's first byte to the end of its head: ends clients that send very slowly.
    head_timeout: float = 10.0
    #: Seconds in which a body must make progress: end, or receive 16 KiB more.
    body_timeout: float = 120.0
    #: Seconds after which a peer that reads nothing is disconnected. A slow reader is not disconnected.
    write_timeout: float = 60.0
    #: Seconds in which a worker accepts a gateway's connection, its TLS handshake included. A request then tries
    #: another worker: short, so that it still can within its deadline.
    connect_timeout: float = 1.0
    #: HTTP/2 receive window of one stream; bodies up to this size arrive without a round trip.
    stream_window: int = 4 * MIB
    #: HTTP/2 receive window of one connection.
    connection_window: int = 64 * MIB
    #: Largest HTTP/2 frame that we accept. Large, for fewer frames per tensor; 16 KiB is the protocol's minimum.
    max_frame_bytes: int = MIB
    #: Bytes that this process buffers for all its peers: bodies not yet answered, answers not yet sent. A connection
    #: over its share gets 503 (UNAVAILABLE) for further requests, and when hardly any memory is left, for requests
    #: without an answer. At least twice max_body_bytes.
    max_buffered_bytes: int = 2048 * MIB
    #: RST_STREAM, PING, SETTINGS and empty frames of one connection per second before it is closed (CVE-2023-44487,
    #: CVE-2019-9512, -9515, -9518), in addition to a number proportional to its requests. A cancelled stream costs
    #: about 20 µs, so this is 4 % of a core.
    max_control_frames_per_second: int = 2000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value <= 0:
                raise ValueError(f"{field.name}: expected a positive number, given {value}")
        if not 16 * KIB <= self.max_frame_bytes < 1 << 24:
            raise ValueError(f"max_frame_bytes: expected 16384 to 16777215, given {self.max_frame_bytes}")
        if self.max_buffered_bytes < 2 * self.max_body_bytes:
            raise ValueError(
                f"max_buffered_bytes: expected at least twice max_body_bytes ({2 * self.max_body_bytes}), "
                f"given {self.max_buffered_bytes}"
            )

    def of_health_checks(self) -> WireLimits:
        """For a port that everybody may ask: small requests, connections that do not stay."""
        return replace(
            self,
            max_body_bytes=1024,
            max_connections=256,
            max_memoised_head_bytes=min(MIB, self.max_memoised_head_bytes),
            idle_timeout=15.0,
            head_timeout=5.0,
        )

    def between_processes(self) -> WireLimits:
        """For the processes of one server: files in a load request grow by a third when they are passed on."""
        body = 2 * self.max_body_bytes
        return replace(self, max_body_bytes=body, max_buffered_bytes=max(self.max_buffered_bytes, 2 * body))
