"""TLS of a client with many servers, which follows its files: authorities to trust, and a certificate of its own.

Each server gets a context that remembers its last session, so that the next connection to it needs no certificates.
Files that change give up all sessions, and open connections go on.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import structlog

from isochrone.errors import ConfigError
from isochrone.secure.certificates.file_stamps import FollowedFiles
from isochrone.wire.tls.contexts import AlertingEnd, client_context

log = structlog.get_logger(__name__)


class ClientTls:
    """What connections to servers need. ``server_name`` "": each server's certificate has the server's own name."""

    def __init__(
        self, ca: Path, certificate: Path | None = None, key: Path | None = None, server_name: str = ""
    ) -> None:
        """Raises ``ConfigError``."""
        self._ca, self._certificate, self._key = ca, certificate, key
        self.server_name = server_name
        self._files = FollowedFiles([path for path in (ca, certificate, key) if path is not None])
        self._http1, self._http2 = self._load(http2=False), self._load(http2=True)

    def to_server(self, *, http2: bool = False) -> ServerSessions:
        """A context for the connections to one server."""
        return ServerSessions(self, http2)

    def to_servers(self) -> ServerSessions:
        """One for connections to any server: it keeps no sessions, since a session belongs to one."""
        return ServerSessions(self, http2=False, resumes=False)

    def current(self, *, http2: bool) -> ssl.SSLContext:
        return self._http2 if http2 else self._http1

    def refresh(self) -> None:
        """Load the files again if they have changed; files that cannot be loaded leave the earlier ones in use."""
        stamp = self._files.changed()
        if stamp is None:
            return
        try:
            loaded = self._load(http2=False), self._load(http2=True)
        except ConfigError as error:
            if self._files.failed(stamp):
                log.warning(
                    "the certificates for workers cannot be loaded again; the earlier ones stay", error=str(error)
                )
            return
        self._http1, self._http2 = loaded
        self._files.loaded(stamp)
        log.info(
            "the certificates for workers were loaded again", ca=str(self._ca), certificate=str(self._certificate or "")
        )

    def _load(self, *, http2: bool) -> ssl.SSLContext:
        try:
            context = client_context(self._ca, http2=http2, certificate=self._certificate, key=self._key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(str(self._ca), "authorities", "PEM certificates", str(error)) from None
        context.sslobject_class = AlertingEnd
        return context


class ServerSessions(ssl.SSLContext):
    """Makes connections to one server by the files as they were last read."""

    def __new__(cls, *_: Any, **__: Any) -> ServerSessions:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, tls: ClientTls, http2: bool, *, resumes: bool = True) -> None:
        self._tls, self._is_http2, self._resumes = tls, http2, resumes
        self._last: AlertingEnd | None = None
        self._session: ssl.SSLSession | None = None
        #: What the session belongs to: another context refuses it.
        self._of: ssl.SSLContext | None = None

    @property
    def failure(self) -> ssl.SSLError | None:
        """Why the last handshake failed, where the connection's own error says only that it ended."""
        return None if self._last is None else self._last.failure

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        context = self._tls.current(http2=self._is_http2)
        if context is not self._of:
            self._last = self._session = None
            self._of = context
        self._take_ticket()
        made = context.wrap_bio(incoming, outgoing, server_side, server_hostname, self._session or session)
        assert isinstance(made, AlertingEnd)
        made.outgoing = outgoing
        if self._resumes:
            self._last = made
        return made

    def _take_ticket(self) -> None:
        """With TLS 1.3 the ticket comes after the handshake: at the next connection it is there. A session cannot be
        read before the end of its handshake (``ValueError``)."""
        if self._last is None or not self._last.is_established:
            return
        session = self._last.session
        if session is not None and session.has_ticket:
            self._session = session
