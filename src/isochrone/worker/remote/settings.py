"""The settings of a remote model, from the ``parameters`` of its config.pbtxt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from isochrone.client.address import Address, Certificates, parse_address
from isochrone.clock import MILLISECOND
from isochrone.errors import ConfigError
from isochrone.models.configuration.remote_models import LATEST
from isochrone.protocol.compression import zstd

_ZSTD = "zstd"
_DEFAULT_IN_FLIGHT = 1024
_DEFAULT_ANSWER_MS = 60_000


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """``version``: of the model there; "": the one that the other server chooses."""

    endpoints: tuple[Address, ...]
    model: str
    version: str
    max_in_flight: int = _DEFAULT_IN_FLIGHT
    #: Of requests without a deadline, and with a later one.
    answer_timeout_ns: int = _DEFAULT_ANSWER_MS * MILLISECOND
    certificates: Certificates = field(default_factory=Certificates)
    #: Of the bodies of requests; None: they are sent as they are.
    zstd_level: int | None = None


def remote_settings(parameters: Mapping[str, str], model: str, version: int, where: str) -> RemoteSettings:
    """``model`` and ``version``: those of the remote model here, which are the defaults there.

    An equal version keeps a request at one version on both sides: a rollout changes both together.
    """
    given = {key: value.strip() for key, value in parameters.items()}
    text = given.get("endpoints", "")
    endpoints = [part.strip() for part in text.split(",") if part.strip()]
    if not endpoints:
        expected = "addresses of workers or of a gateway, with commas: core-1:8000,core-2:8000"
        raise ConfigError(where, 'parameters["endpoints"]', expected, repr(text))
    certificates = Certificates(*(Path(given[key]) if given.get(key) else None for key in ("ca", "cert", "key")))
    addresses = tuple(_address(each, certificates, where) for each in endpoints)
    return RemoteSettings(
        addresses,
        given.get("remote_model") or model,
        _version(given.get("remote_version", ""), version, where),
        _positive(given, "max_in_flight", _DEFAULT_IN_FLIGHT, where),
        _positive(given, "answer_timeout_ms", _DEFAULT_ANSWER_MS, where) * MILLISECOND,
        certificates,
        _zstd_level(given, addresses, where),
    )


def _zstd_level(given: Mapping[str, str], addresses: tuple[Address, ...], where: str) -> int | None:
    compression, level = given.get("compression", ""), given.get("compression_level", "")
    if not compression:
        if level:
            raise ConfigError(where, 'parameters["compression"]', '"zstd", since compression_level is given', "nothing")
        return None
    if compression != _ZSTD:
        raise ConfigError(where, 'parameters["compression"]', f'"{_ZSTD}", or nothing', repr(compression))
    if not zstd.is_installed():
        expected = f"the package {zstd.PACKAGE} on this machine"
        raise ConfigError(where, 'parameters["compression"]', expected, "a server without it")
    for address in addresses:
        if address.is_grpc:
            expected = f'endpoints over HTTP beside compression "{_ZSTD}", which gRPC does not have'
            raise ConfigError(where, 'parameters["endpoints"]', expected, str(address))
    if level and not (level.isdigit() and 0 < int(level) <= zstd.HIGHEST_LEVEL):
        expected = f"a whole number from 1 to {zstd.HIGHEST_LEVEL}"
        raise ConfigError(where, 'parameters["compression_level"]', expected, repr(level))
    return int(level) if level else zstd.DEFAULT_LEVEL


def _address(text: str, certificates: Certificates, where: str) -> Address:
    try:
        address = parse_address(text)
        certificates.check(address)
    except ConfigError as error:
        raise ConfigError(where, 'parameters["endpoints"]', error.expected, error.given) from None
    return address


def _version(text: str, own: int, where: str) -> str:
    if text == LATEST:
        return ""
    if text and not (text.isdigit() and int(text) > 0):
        raise ConfigError(where, 'parameters["remote_version"]', f'a version, or "{LATEST}"', repr(text))
    return text or str(own)


def _positive(given: Mapping[str, str], key: str, default: int, where: str) -> int:
    text = given.get(key, "")
    if text and not (text.isdigit() and int(text) > 0):
        raise ConfigError(where, f'parameters["{key}"]', "a whole number above 0", repr(text))
    return int(text) if text else default
