"""TLS contexts with ALPN for HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import ssl
from pathlib import Path

from isochrone.errors import ConfigError
from isochrone.wire.certificates import first_expiry


class ServerTls(ssl.SSLContext):
    """The context of a listener, with what it cannot say of itself."""

    #: When the first certificate of its chain expires, in seconds since 1970; None: that cannot be read.
    expires: float | None = None


def server_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ServerTls:
    """For a listener; with ``client_ca``, clients must present a certificate that it signed."""
    context = ServerTls(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
        context.expires = first_expiry(certificate.read_text("ascii", "replace"))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{certificate}, {key}", "certificate", "a PEM certificate and its key", str(error)) from None
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(str(client_ca), "client CA", "a PEM certificate", str(error)) from None
        context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def client_context(ca: Path | None = None, *, http2: bool = False) -> ssl.SSLContext:
    """For a client; ``ca`` replaces the system's trust store."""
    context = ssl.create_default_context(cafile=str(ca) if ca else None)
    context.set_alpn_protocols(["h2"] if http2 else ["http/1.1"])
    return context
