"""A server behind a proxy: where it answers HTTP/1.1 and where gRPC; our servers do both on either port."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Upstream:
    """Ports on the loopback address."""

    http_port: int
    grpc_port: int
