"""TLS contexts with ALPN for HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import ssl
from pathlib import Path

from isochrone.errors import ConfigError


def server_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """For a listener; with ``client_ca``, clients must present a certificate that it signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
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
