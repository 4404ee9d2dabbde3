"""Why a worker cannot start."""

from __future__ import annotations


class StartFailed(Exception):
    """The server cannot start; the message names the remedy."""


class PortTaken(StartFailed):
    """A port cannot be listened on."""

    def __init__(self, service: str, host: str, port: int, reason: str) -> None:
        self.service, self.host, self.port, self.reason = service, host, port, reason
        super().__init__(
            f"cannot listen on {host}:{port} for {service}: {reason}; choose another with --{service}-port"
        )
