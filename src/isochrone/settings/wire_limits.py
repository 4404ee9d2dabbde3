"""Limits of the wire, frozen and validated once. Every field states its unit, default and reason."""

from __future__ import annotations

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WireLimits:
    """The limits of one peer. The error for exceeding a limit names it."""

    #: Bytes of one message head (request line and header fields; on HTTP/2 the encoded block). Larger: 431.
    max_head_bytes: int = 64 * KIB
    #: Header fields in one message. Larger: 431.
    max_headers: int = 128
    #: Bytes of one request body, before and after decompression. Larger: 413. Video frames fit; a bomb does not.
    max_body_bytes: int = 256 * MIB
    #: Connections one listener holds. The next one gets 503 and is closed.
    max_connections: int = 32_768
    #: HTTP/2 streams open at once on one connection; the next one is refused (REFUSED_STREAM).
    max_streams: int = 1024
    #: HTTP/1.1 requests of one connection in progress at once (pipelining); past it, reading pauses.
    max_pipelined: int = 64
    #: Seconds a connection may stay without a request. Fleets keep connections warm, so it is generous.
    idle_timeout: float = 3600.0
    #: Seconds from a message's first byte to the end of its head: ends slow-drip clients.
    head_timeout: float = 10.0
    #: Seconds in which a body that has begun must make progress: end, or bring 16 KiB more.
    body_timeout: float = 120.0
    #: Seconds a peer may take none of the bytes that wait for it before it is cut. A slow reader is not cut.
    write_timeout: float = 60.0
    #: HTTP/2 receive window of one stream; bodies up to this size arrive without a round trip.
    stream_window: int = 4 * MIB
    #: HTTP/2 receive window of one connection.
    connection_window: int = 64 * MIB
    #: Largest HTTP/2 frame we accept. Fewer frames per tensor; 16 KiB is the protocol's minimum.
    max_frame_bytes: int = MIB
    #: Bytes this process holds for all its peers: bodies received and not yet answered, answers not yet sent. A
    #: connection over its fair share gets 503 (UNAVAILABLE) for further requests, and when hardly anything is left, for
    #: those that have no answer yet. At least twice max_body_bytes.
    max_buffered_bytes: int = 2048 * MIB
    #: RST_STREAM, PING, SETTINGS and empty frames of one connection in a second before it is closed
    #: (CVE-2023-44487, CVE-2019-9512, -9515, -9518), beyond those that the requests it sends account for. A cancelled
    #: stream costs some 20 µs, so this is 4 % of a core.
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
