"""TLS for HTTP/1.1 and HTTP/2: the context of a listener, which follows its files, and that of a client.

A listener's certificate, key and client authorities may be replaced while it serves: new connections get the new ones,
those that are open go on. Each set of files gets a context of its own, so that an authority that was removed is
forgotten with the sessions that it let in.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from isochrone.clock import now_ns
from isochrone.errors import ConfigError
from isochrone.observe.sparing import Sparing
from isochrone.secure.certificates.file_stamps import FollowedFiles
from isochrone.secure.certificates.identity import identities
from isochrone.wire.tls.certificates import first_expiry
from isochrone.wire.tls.client_hello import offered_protocols

log = structlog.get_logger(__name__)

PROTOCOLS = ("h2", "http/1.1")
#: For TLS 1.2: forward secrecy and authenticated encryption, which are all that RFC 9113 (appendix A) leaves. The
#: suites of TLS 1.3 have both.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
#: The alert for a client that offers other protocols (RFC 7301, 3.2), and the one for what cannot be read.
_NO_APPLICATION_PROTOCOL, _DECODE_ERROR = 120, 50
_HANDSHAKE, _CLIENT_HELLO = 22, 1
#: Reasons of failed handshakes that need an explanation.
_REASONS = {
    "CALLBACK_FAILED": "the client offers neither h2 nor http/1.1 by ALPN",
    "HTTP_REQUEST": "the client speaks plain HTTP: it needs https:// or grpcs://",
    "NO_SHARED_CIPHER": "the client has no cipher suite with forward secrecy and authenticated encryption",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the authority of this server's certificate",
    "UNSUPPORTED_PROTOCOL": "the client speaks no TLS 1.2 or 1.3",
}


class ServerTls(ssl.SSLContext):
    """The context of a listener: makes each connection by the files as they were last read."""

    #: When the first certificate of its chain expires, in seconds since 1970; None: that cannot be read.
    expires: float | None = None

    def __new__(cls, *_: Any, **__: Any) -> ServerTls:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(
        self,
        certificate: Path,
        key: Path,
        client_ca: Path | Sequence[Path] | None = None,
        *,
        protocols: Sequence[str] = PROTOCOLS,
        permissive: bool = False,
    ) -> None:
        """Raises ``ConfigError``."""
        self._certificate, self._key = certificate, key
        self._client_ca = (client_ca,) if isinstance(client_ca, Path) else tuple(client_ca or ())
        self._protocols = tuple(protocols)
        #: Its listener also accepts plain connections.
        self.permissive = permissive
        self._files = FollowedFiles([certificate, key, *self._client_ca])
        self._current, self.expires = self._load()
        #: Handshakes that failed since the process started.
        self.failures = 0
        self._sparing = Sparing()

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *more: Any, **options: Any) -> ssl.SSLObject:
        made = self._current.wrap_bio(incoming, outgoing, *more, **options)
        assert isinstance(made, ServerSide)
        made.owner, made.outgoing = self, outgoing
        return made

    def refresh(self) -> None:
        """Load the files again if they have changed. Files that do not fit yet are tried again at the next call; until
        then, and if they are broken, the earlier ones serve."""
        stamp = self._files.changed()
        if stamp is None:
            return
        try:
            loaded, expires = self._load()
            self._refuse_expired(expires)
        except ConfigError as error:
            if self._files.failed(stamp):
                log.warning(
                    "the certificate cannot be loaded again; the earlier one serves",
                    error=str(error),
                    expires=_date(self.expires),
                )
            return
        self._current, self.expires = loaded, expires
        self._files.loaded(stamp)
        log.info("the certificate was loaded again", file=str(self._certificate), expires=_date(expires))

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """A client gets nothing from this listener: say why, at most once a minute."""
        self.failures += 1
        left_out = self._sparing.lets_through(now_ns())
        if left_out is not None:
            log.warning("a TLS handshake failed", reason=_reason(error), others_since=left_out)

    def _load(self) -> tuple[ssl.SSLContext, float | None]:
        """The context that connections begin with, and when its certificate expires.

        It hands each connection over to another one, which has the files and calls nothing back.
        """
        serving = _server_context(self._certificate, self._key, self._client_ca, self._protocols)
        entry = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _harden(entry, self._protocols)
        # OpenSSL issues two. Each contains the client's certificate, and takes a sixth of such a handshake.
        entry.num_tickets = 1
        # What does not go over with the handover.
        entry.verify_mode = serving.verify_mode
        entry.sslobject_class = ServerSide
        # A hook for debugging, but the only way to the message; openssl calls it for this one message alone.
        entry._msg_callback = _note_hello  # type: ignore[attr-defined]

        offers = frozenset(each.encode() for each in self._protocols)

        def chosen(side: Any, name: str | None, context: ssl.SSLContext) -> int | None:
            side.context = serving
            return _alert_for(side, offers)

        entry.sni_callback = chosen
        return entry, first_expiry(self._certificate.read_text("ascii", "replace"))

    def _refuse_expired(self, expires: float | None) -> None:
        """A certificate that has expired does not replace one that has not."""
        now = time.time()
        if expires is not None and expires <= now and (self.expires is None or self.expires > now):
            raise ConfigError(str(self._certificate), "certificate", "one that is valid", "one that has expired")


class AlertingEnd(ssl.SSLObject):
    """One end of a connection, which tells the other end why a handshake failed.

    Event loops close the transport as soon as a handshake raises, and drop the alert that waits to be sent: the peer
    sees a connection that ends without a reason. So a failed handshake seems to go on until the alert is written. Then
    the peer closes, or sends more and the failure is raised.
    """

    outgoing: ssl.MemoryBIO | None = None
    failure: ssl.SSLError | None = None
    is_established: bool = False

    def do_handshake(self) -> None:
        if self.failure is not None:
            raise self.failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self.failed(error)
            if self.outgoing is None or not self.outgoing.pending:
                raise
            self.failure = error
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "the alert is not sent yet") from None
        self.is_established = True

    def failed(self, error: ssl.SSLError) -> None:
        """Called once, for the first failure."""


class ServerSide(AlertingEnd):
    """The server's end of one connection."""

    owner: ServerTls | None = None
    #: The client's first message, until it is judged.
    hello: bytes | None = None
    _identity: tuple[str, ...] | None = None

    def failed(self, error: ssl.SSLError) -> None:
        if self.owner is not None:
            self.owner.handshake_failed(error)

    @property
    def identity(self) -> tuple[str, ...]:
        if self._identity is None:
            self._identity = identities(self.getpeercert())
        return self._identity


def peer_identity(end: ssl.SSLObject | None) -> tuple[str, ...]:
    """URIs and DNS names of the certificate that the peer has proved to own; () without one, or without TLS.

    ``end``: a transport's ``get_extra_info("ssl_object")``.
    """
    if end is None:
        return ()
    return end.identity if isinstance(end, ServerSide) else identities(end.getpeercert())


def server_context(
    certificate: Path, key: Path, client_ca: Path | None = None, *, permissive: bool = False
) -> ServerTls:
    """For a listener; with ``client_ca``, clients must present a certificate that it signed. ``permissive``: plain
    connections are accepted, too."""
    return ServerTls(certificate, key, client_ca, permissive=permissive)


def client_context(
    ca: Path | None = None, *, http2: bool = False, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """For a client; ``ca`` replaces the system's trust store. Raises ``OSError``, of which ``ssl.SSLError`` is one, for
    ``ca``, and ``ConfigError`` for the client's own certificate."""
    context = ssl.create_default_context(cafile=str(ca) if ca else None)
    _harden(context, ["h2"] if http2 else ["http/1.1"])
    if certificate is not None and key is not None:
        load_pair(context, certificate, key)
    return context


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Raises ``ConfigError``."""
    try:
        # Without a function for the password, openssl would ask for it at the terminal.
        context.load_cert_chain(certificate, key, _no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{certificate}, {key}", "certificate", "a PEM certificate and its key", str(error)) from None


def _server_context(
    certificate: Path, key: Path, client_ca: Sequence[Path], protocols: Sequence[str]
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context, protocols)
    load_pair(context, certificate, key)
    for authority in client_ca:
        try:
            context.load_verify_locations(authority)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(str(authority), "client CA", "a PEM certificate", str(error)) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _harden(context: ssl.SSLContext, protocols: Sequence[str]) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(list(protocols))


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one without a passphrase")


def _note_hello(side: Any, direction: str, version: Any, content: Any, kind: Any, message: bytes) -> None:
    if direction == "read" and content == _HANDSHAKE and kind == _CLIENT_HELLO:
        side.hello = message


def _alert_for(side: Any, offers: frozenset[bytes]) -> int | None:
    """The alert that ends the handshake; None: the client may go on. A client's second message, after a retry of the
    handshake (RFC 8446, 4.1.4), is not seen: its protocols are those of the first."""
    hello, side.hello = side.hello, None
    if hello is None:
        return None
    try:
        offered = offered_protocols(hello)
    except ValueError:
        return _DECODE_ERROR
    return None if offered is None or not offers.isdisjoint(offered) else _NO_APPLICATION_PROTOCOL


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    return _REASONS.get(error.reason or "", (error.reason or str(error)).replace("_", " ").lower())


def _date(expires: float | None) -> str:
    return "" if expires is None else datetime.fromtimestamp(expires, UTC).isoformat()
