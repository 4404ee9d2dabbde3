"""Two ends of a TLS connection in memory, without a socket."""

from __future__ import annotations

import ssl


def handshake(
    client: ssl.SSLContext,
    server: ssl.SSLContext,
    name: str | None = "localhost",
    session: ssl.SSLSession | None = None,
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Carries bytes between two ends until both are done; raises what either raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=name, session=session),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            break
    assert not waiting
    return ends
