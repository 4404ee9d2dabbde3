"""A server behind a proxy: its ports for HTTP/1.1 and gRPC; our servers accept both on either port."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Upstream:
    """Ports on the loopback address."""

    http_port: int
    grpc_port: int
