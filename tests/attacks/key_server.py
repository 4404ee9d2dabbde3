"""An OpenID provider's discovery document and keys over loopback HTTP; tests sign its tokens themselves."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from issued_tokens import public


class KeyServer:
    def __init__(self, port: int, *keys: Any) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.keys = keys
        #: How often its keys were fetched.
        self.fetches = 0
        #: How often it was asked for anything.
        self.requests = 0
        #: The bytes of every answer, in place of the right ones; b"": it closes the connection.
        self.broken: bytes | None = None
        #: Cleared: it answers nothing until it is set.
        self.answers = threading.Event()
        self.answers.set()

    def document(self, path: str) -> dict[str, Any] | None:
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys", "token_endpoint": f"{self.issuer}/token"}
        if path == "/keys":
            self.fetches += 1
            return public(*self.keys)
        return None


@contextmanager
def key_server(*keys: Any) -> Iterator[KeyServer]:
    served: list[KeyServer] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider = served[0]
            provider.requests += 1
            assert provider.answers.wait(60)
            if provider.broken is not None:
                self.close_connection = True
                self.wfile.write(provider.broken)
                return
            document = provider.document(self.path)
            content = json.dumps(document).encode()
            self.send_response(200 if document is not None else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.append(KeyServer(server.server_address[1], *keys))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield served[0]
        finally:
            server.shutdown()
            thread.join()
