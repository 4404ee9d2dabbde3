"""The proxies of the gateway's benches: one file each, `start(...)` is a context manager that yields a Peer.

    with envoy.start([Upstream(8000, 8001)]) as proxy:
        proxy.http_url, proxy.grpc_address, proxy.cpu_seconds()

A proxy that is not installed or does not start raises PeerUnavailable with the reason. It measures nothing.
"""

from bench.gateway.proxies.upstream import Upstream

__all__ = ["Upstream"]
