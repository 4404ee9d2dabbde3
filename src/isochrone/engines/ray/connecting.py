"""Connects this process to a Ray cluster, or explains within seconds why it cannot.

Ray itself retries an address that nobody answers for most of a minute. So the port is probed first.
"""

from __future__ import annotations

import logging
import os
import socket
from importlib.util import find_spec

from isochrone.errors import ConfigError, IsochroneError, Unavailable
from isochrone.resolving.resolver import resolver

#: The namespace of all actors of all fleets.
NAMESPACE = "isochrone"
#: Ray's word for the cluster that runs on this machine.
AUTO = "auto"
_SECONDS = 3.0
#: What every client of gRPC sends first, and the type of the frame that every server of it answers first.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_SETTINGS = b"\4"
#: Ray's: its ports speak TLS.
_TLS_VARIABLE = "RAY_USE_TLS"
_ADDRESS_VARIABLE = "RAY_ADDRESS"
#: Ray does not print messages that match it.
_SKIP_VARIABLE = "RAY_DEDUP_LOGS_SKIP_REGEX"


def connect(address: str) -> str:
    """Connect to ``HOST:PORT``, ``ray://HOST:PORT`` or ``auto``; return the address that was found. Raise
    ``ConfigError`` or ``Unavailable``."""
    if find_spec("ray") is None:
        raise ConfigError("--engine", "name", "the package ray for this engine: pip install 'isochrone[ray]'", "no ray")
    named = _address(address)
    # Ray prints pages of its own logs when a node is lost. The supervisor reports that itself, in a line.
    os.environ.setdefault(_SKIP_VARIABLE, r"[\s\S]*")
    import ray
    from ray._private.services import find_bootstrap_address

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    # A cluster that was killed leaves its address behind, and Ray would try it for minutes.
    if (found := find_bootstrap_address(None) if named == AUTO else named) is not None:
        _probe(found)
    try:
        ray.init(
            address=named,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError) as error:
        raise explained(error, named) from None
    return named if named != AUTO else str(ray.get_runtime_context().gcs_address)


def disconnect() -> None:
    """The actors go on."""
    import ray

    ray.shutdown()


def _address(given: str) -> str:
    if given != AUTO:
        return given
    return os.environ.get(_ADDRESS_VARIABLE, "") or AUTO


def _probe(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError("--address", "address", "HOST:PORT, ray://HOST:PORT or auto", repr(address))
    try:
        # The time limit of a socket does not cover the lookup of a name.
        found = resolver.look_blocking(host.removeprefix("[").removesuffix("]"), _SECONDS)
        with socket.create_connection((found[0], int(port)), timeout=_SECONDS) as probe:
            if os.environ.get(_TLS_VARIABLE, "0") == "1":
                return
            probe.sendall(_HELLO)
            answer = probe.recv(9)
    except OSError as error:
        raise _nobody(address, str(error)) from None
    if answer[3:4] != _SETTINGS:
        raise _nobody(address, "another server has the port")


def explained(error: Exception, address: str) -> IsochroneError:
    """Ray's error in a sentence. Pure."""
    if isinstance(error, ConnectionError):
        return _nobody(address, _first_line(error))
    if "mismatch" in str(error):
        return ConfigError("--address", "cluster", "the Ray and Python of this environment", _one_line(error))
    return Unavailable(f"Ray at {address}: {_first_line(error)}")


def _nobody(address: str, reason: str) -> ConfigError:
    expected = "the address of a running Ray cluster, as printed by ray start --head"
    return ConfigError("--address", "address", expected, f"{address!r}, where none answers ({reason})")


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
