"""The outside servers the bench and the peer tests drive: one file each, `start(...)` as a context manager.

    with triton.start(onnx_files) as peer:
        peer.http_url, peer.grpc_address, peer.cpu_seconds()

A peer that is not installed, or does not come up, raises PeerUnavailable with the reason. Nothing here
measures, and no server's package is imported here: each runs in an environment of its own.
"""

from bench.worker.peers.process import Peer, PeerUnavailable

__all__ = ["Peer", "PeerUnavailable"]
