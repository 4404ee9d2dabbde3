"""Ports of grpcio's servers on a controller, plain or with certificates that are followed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import grpc
import structlog

from isochrone.errors import ConfigError
from isochrone.secure.certificates.file_stamps import FollowedFiles
from isochrone.wire.tls.contexts import ServerTls

log = structlog.get_logger(__name__)


class GrpcCertificate(NamedTuple):
    """``client_ca`` (): clients need no certificate."""

    certificate: Path
    key: Path
    client_ca: Sequence[Path] = ()

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """Raises ``ConfigError``."""
        # grpcio says nothing about files that do not fit; this does.
        ServerTls(self.certificate, self.key, self.client_ca)
        authorities = b"".join(path.read_bytes() for path in self.client_ca) or None
        return grpc.ssl_server_certificate_configuration(
            [(self.key.read_bytes(), self.certificate.read_bytes())], authorities
        )


def open_port(server: grpc.aio.Server, host: str, port: int, tls: GrpcCertificate | None) -> int:
    """Returns the port. Raises ``RuntimeError`` if it is taken, and ``ConfigError`` for the files."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if tls is None:
        plain: int = server.add_insecure_port(address)
        return plain
    files = FollowedFiles([tls.certificate, tls.key, *tls.client_ca])

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        """Called at each handshake, on a thread of grpcio's. None: as before."""
        stamp = files.changed()
        if stamp is None:
            return None
        try:
            found = tls.configuration()
        except (ConfigError, OSError) as error:
            if files.failed(stamp):
                log.warning("the certificate cannot be loaded again; the earlier one serves", error=str(error))
            return None
        files.loaded(stamp)
        return found

    credentials = grpc.dynamic_ssl_server_credentials(tls.configuration(), renewed, bool(tls.client_ca))
    bound: int = server.add_secure_port(address, credentials)
    return bound
