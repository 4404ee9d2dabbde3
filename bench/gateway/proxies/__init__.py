"""The proxies a bench puts before upstreams: one file each, `start(...)` as a context manager that yields a Peer.

    with envoy.start([Upstream(8000, 8001)]) as proxy:
        proxy.http_url, proxy.grpc_address, proxy.cpu_seconds()

A proxy that is not installed, or does not come up, raises PeerUnavailable with the reason. Nothing here measures.
"""

from bench.gateway.proxies.upstream import Upstream

__all__ = ["Upstream"]
